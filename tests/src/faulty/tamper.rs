//! An attacker who writes into the bucket: drops, replaces, swaps, duplicates and restores objects, between
//! any two requests.

use futures::TryStreamExt;
use kvasir_store::layout::{Key, Layout};
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path};
use tokio::time::Instant;

use super::Dice;

/// Number of deleted objects that may be restored.
const PAST_MAX: usize = 64;

/// The change to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tampering {
    /// It is gone.
    Dropped,
    /// A byte of it is another.
    Flipped,
    /// It ends early.
    Cut,
    /// Its bytes are those of another, and the other way round.
    Swapped,
    /// Another object's bytes are stored under an additional name.
    Duplicated,
    /// A deleted object is restored.
    RolledBack,
}

impl Tampering {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Dropped, Self::Flipped, Self::Cut, Self::Swapped, Self::Duplicated, Self::RolledBack];
}

/// One object that is not as the service left it.
#[derive(Debug, Clone)]
pub struct Tampered {
    /// The change.
    pub what: Tampering,
    /// Which object it is.
    pub key: Key,
    /// When.
    pub at: Instant,
}

/// The adversary of one store.
#[derive(Debug)]
pub(super) struct Adversary {
    dice: Dice,
    layout: Layout,
    past: Vec<(Path, Vec<u8>)>,
    tampered: Vec<Tampered>,
}

impl Adversary {
    pub(super) fn new(seed: u64) -> Self {
        let layout = Layout::new(&Path::default());
        Self { dice: Dice::new(seed), layout, past: Vec::new(), tampered: Vec::new() }
    }

    /// Chunk objects, tombstones, pins and the journal. Another test covers data on which every answer
    /// depends, such as salts.
    fn key(&self, path: &Path) -> Option<Key> {
        let key = self.layout.parse(path)?;
        let is_wanted = matches!(
            key,
            Key::Chunk(_) | Key::Tombstone(_) | Key::Gone(_) | Key::Context { .. } | Key::Journal { .. }
        );
        is_wanted.then_some(key)
    }

    pub(super) fn path(&self, key: &Key) -> Path {
        self.layout.path(key)
    }

    /// Records an object before its deletion: it may be restored.
    pub(super) async fn remember(&mut self, store: &InMemory, path: &Path) {
        let Some(bytes) = get(store, path).await.filter(|_| self.key(path).is_some()) else { return };
        if self.past.len() == PAST_MAX {
            let at = self.dice.below(PAST_MAX);
            self.past.swap_remove(at);
        }
        self.past.push((path.clone(), bytes));
    }

    /// Does one thing to the store. Gives which objects are not as the service left them.
    pub(super) async fn act(&mut self, store: &InMemory) -> Vec<Tampered> {
        self.choose(store).await;
        std::mem::take(&mut self.tampered)
    }

    async fn choose(&mut self, store: &InMemory) {
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap_or_default();
        let mut paths: Vec<Path> = listed.into_iter().map(|meta| meta.location).collect();
        paths.retain(|path| self.key(path).is_some());
        paths.sort();
        if paths.is_empty() {
            return;
        }
        let path = paths[self.dice.below(paths.len())].clone();
        let alike: Vec<&Path> =
            paths.iter().filter(|other| **other != path && self.is_alike(other, &path)).collect();
        let other = (!alike.is_empty()).then(|| alike[self.dice.below(alike.len())].clone());
        let Some(mut bytes) = get(store, &path).await else { return };
        let what = Tampering::ALL[self.dice.below(Tampering::ALL.len())];
        match (what, other) {
            (Tampering::Dropped, _) => {
                self.remember(store, &path).await;
                let _ = store.delete(&path).await;
                self.note(what, &path);
            }
            (Tampering::Flipped, _) if !bytes.is_empty() => {
                let (at, bit) = (self.dice.below(bytes.len()), self.dice.below(8));
                bytes[at] ^= 1 << bit;
                self.put(store, what, &path, bytes).await;
            }
            (Tampering::Cut, _) if !bytes.is_empty() => {
                bytes.truncate(self.dice.below(bytes.len()));
                self.put(store, what, &path, bytes).await;
            }
            (Tampering::Swapped, Some(other)) => {
                let Some(others) = get(store, &other).await else { return };
                self.put(store, what, &other, bytes).await;
                self.put(store, what, &path, others).await;
            }
            (Tampering::Duplicated, Some(other)) => {
                let (Some(name), Some(others)) = (other.filename(), get(store, &other).await) else { return };
                let parts: Vec<_> = path.parts().collect();
                let beside: Path = parts[..parts.len() - 1].iter().cloned().collect::<Path>().join(name);
                self.put(store, what, &beside, others).await;
            }
            (Tampering::RolledBack, _) if !self.past.is_empty() => {
                let at = self.dice.below(self.past.len());
                let (path, bytes) = self.past.swap_remove(at);
                self.put(store, what, &path, bytes).await;
            }
            _ => {}
        }
    }

    fn is_alike(&self, a: &Path, b: &Path) -> bool {
        let kind = |path| self.key(path).map(|key| std::mem::discriminant(&key));
        kind(a) == kind(b)
    }

    async fn put(&mut self, store: &InMemory, what: Tampering, path: &Path, bytes: Vec<u8>) {
        let _ = store.put(path, bytes.into()).await;
        self.note(what, path);
    }

    fn note(&mut self, what: Tampering, path: &Path) {
        let at = Instant::now();
        self.tampered.extend(self.key(path).map(|key| Tampered { what, key, at }));
    }
}

async fn get(store: &InMemory, path: &Path) -> Option<Vec<u8>> {
    Some(store.get(path).await.ok()?.bytes().await.ok()?.to_vec())
}
