//! Prefix reuse in memory: a radix tree over pages, evicted leaf by leaf (RadixAttention, arXiv 2312.07104).
//!
//! A node is one full page of KV, named by the hash of its tokens and of everything before them. Sequences with a common
//! prefix share its nodes; what a sequence has for itself hangs below. The least recently used leaf is evicted first, so
//! a prefix lives as long as anything that continues it.

use kvasir_types::Loss;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use kvasir_client::pages::PageRef;

use crate::paged::{PagePool, PagedKv};

/// Identity of a page's tokens and of all before them, within this process.
type PageKey = [u8; 32];

/// Pages of finished sequences, found by their tokens.
#[derive(Debug)]
pub struct PrefixCache {
    pool: Arc<PagePool>,
    nodes: HashMap<PageKey, Node>,
    /// Nodes without children by last use. Ancestors of a leaf have its stamp or a newer one, so stamps are
    /// unique here.
    leaves: BTreeMap<u64, PageKey>,
    clock: u64,
}

#[derive(Debug)]
struct Node {
    page: PageRef,
    /// The largest loss of this page and its ancestors.
    loss: Loss,
    parent: Option<PageKey>,
    children: u32,
    used: u64,
}

impl PrefixCache {
    /// An empty cache of pages of `pool`.
    pub fn new(pool: Arc<PagePool>) -> Self {
        Self { pool, nodes: HashMap::new(), leaves: BTreeMap::new(), clock: 0 }
    }

    /// Pages held.
    pub fn pages(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Leading tokens of `tokens` that are held: whole pages.
    pub fn held(&self, tokens: &[u32]) -> usize {
        self.path(tokens).take_while(|key| self.nodes.contains_key(key)).count() * self.pool.page_tokens()
    }

    /// A sequence with the longest held prefix of `tokens`, in shared whole pages; `None` if there is none.
    pub fn lookup(&mut self, tokens: &[u32]) -> Option<PagedKv> {
        let path: Vec<PageKey> = self.path(tokens).take_while(|key| self.nodes.contains_key(key)).collect();
        if path.is_empty() {
            return None;
        }
        self.touch(&path);
        let nodes = || path.iter().filter_map(|key| self.nodes.get(key));
        let pages: Vec<PageRef> = nodes().map(|node| node.page).collect();
        Some(PagedKv::sharing(
            &self.pool,
            &pages,
            nodes().map(|node| node.loss).fold(Loss::NONE, Loss::worst),
        ))
    }

    /// Keeps the whole pages of `tokens`, all of which `kv` holds. Pages that are already held stay
    /// unchanged.
    pub fn insert(&mut self, tokens: &[u32], kv: &PagedKv) {
        let path: Vec<PageKey> = self.path(tokens).take(kv.len() / self.pool.page_tokens()).collect();
        let mut parent = None;
        for (key, page) in path.iter().zip(kv.pages()) {
            if !self.nodes.contains_key(key) {
                self.pool.share(*page);
                self.nodes.insert(*key, Node { page: *page, loss: kv.loss(), parent, children: 0, used: 0 });
                if let Some(above) = parent.and_then(|parent| self.nodes.get_mut(&parent)) {
                    above.children += 1;
                    self.leaves.remove(&above.used);
                }
            }
            parent = Some(*key);
        }
        self.touch(&path);
    }

    /// Drops the least recently used leaf; `false` if there is none. Its memory is free once no running
    /// sequence shares it.
    pub fn evict(&mut self) -> bool {
        let Some((_, key)) = self.leaves.pop_first() else { return false };
        let Some(node) = self.nodes.remove(&key) else { return false };
        self.pool.release(node.page);
        if let Some(parent) = node.parent
            && let Some(above) = self.nodes.get_mut(&parent)
        {
            above.children -= 1;
            if above.children == 0 {
                self.leaves.insert(above.used, parent);
            }
        }
        true
    }

    /// Marks a path from the root as used now.
    fn touch(&mut self, path: &[PageKey]) {
        self.clock += 1;
        for key in path {
            let Some(node) = self.nodes.get_mut(key) else { continue };
            if node.children == 0 {
                self.leaves.remove(&node.used);
                self.leaves.insert(self.clock, *key);
            }
            node.used = self.clock;
        }
    }

    /// Keys of the whole pages of `tokens`.
    fn path<'a>(&self, tokens: &'a [u32]) -> impl Iterator<Item = PageKey> + use<'a> {
        let mut parent = PageKey::default();
        tokens.chunks_exact(self.pool.page_tokens()).map(move |page| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&parent);
            page.iter().for_each(|token| {
                hasher.update(&token.to_le_bytes());
            });
            parent = *hasher.finalize().as_bytes();
            parent
        })
    }
}

impl Drop for PrefixCache {
    fn drop(&mut self) {
        self.nodes.values().for_each(|node| self.pool.release(node.page));
    }
}
