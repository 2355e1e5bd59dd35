//! The longest usable prefix: from the hot index, and from the store where the index ends.
//!
//! Chunks unknown to the index may still be in the store. Whole chunks are found by asking the store for the
//! seq_hashes at which a chunk could end: the next 4 chunks, then 60, then the rest, each round in parallel,
//! until one finds nothing. Found chunks enter the index; misses are remembered for `negative_ttl`.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};
use kvasir_api::{ChunkMatch, LookupResponse, Via};
use kvasir_store::{StoreError, layout::ChunkKey};
use kvasir_types::{
    BLOCK_TOKENS, CHUNK_TOKENS_STEP, Medium, ModelId, Name, ObjectDigest, Reuse, RootHash, SeqHash,
};
use tokio::time::Instant;

use crate::{
    catalog::Catalog,
    chain_cache::ChainCache,
    error::{CatalogError, ChunkError},
    hot::RequestHint,
    index::{IndexEntry, MatchedChunk, Scope, Search, Walk},
    limits,
    read::Reads,
    removal::Removal,
};

/// The subject of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// The tokens themselves.
    Tokens(Vec<u32>),
    /// Their block hashes, starting at the root.
    Blocks(Vec<SeqHash>),
    /// Chunks, each following the previous one and the first one the root.
    Chunks(Vec<SeqHash>),
}

/// The match of a query under one root.
struct RootMatch<'a> {
    blocks: Cow<'a, [SeqHash]>,
    walk: Walk,
    is_whole: bool,
}

/// The tenant and model that a lookup is confined to.
#[derive(Debug, Clone, Copy)]
struct LookupScope<'a> {
    tenant: &'a Name,
    model_id: &'a ModelId,
    scope: Scope,
    /// Whether remembered misses are bypassed.
    fresh: bool,
}

impl LookupScope<'_> {
    fn key(&self, chunk: &MatchedChunk) -> ChunkKey {
        let (tenant, model_id) = (self.tenant.clone(), *self.model_id);
        ChunkKey { tenant, model_id, seq_hash: chunk.row.seq_hash, object_digest: chunk.row.object_digest }
    }
}

/// A lookup of a request.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// The tenant.
    pub tenant: Name,
    /// The namespace.
    pub namespace: Name,
    /// The model.
    pub model_id: ModelId,
    /// The subject.
    pub query: Query,
    /// Bypasses remembered misses, and asks the store for tombstones of matched chunks.
    pub fresh: bool,
    /// The request's description.
    pub hint: RequestHint,
}

impl Lookup {
    /// A lookup without further data.
    pub fn new(tenant: &Name, namespace: &Name, model_id: &ModelId, query: Query) -> Self {
        let (tenant, namespace, hint) = (tenant.clone(), namespace.clone(), RequestHint::default());
        Self { tenant, namespace, model_id: *model_id, query, fresh: false, hint }
    }

    /// The same, fresh or not.
    #[must_use]
    pub fn fresh(self, fresh: bool) -> Self {
        Self { fresh, ..self }
    }
}

/// How the store is asked for chunks that the index does not know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probes {
    /// Chunk length in tokens that is tried first.
    pub(crate) chunk_tokens: usize,
    /// Concurrent requests of one lookup.
    pub(crate) parallel: usize,
}

/// The store's responses in a lookup.
#[derive(Debug, Default)]
struct Asked {
    /// By the block at which a chunk may end.
    ends: HashMap<usize, Listed>,
}

/// The store's response for one end.
#[derive(Debug, Default)]
struct Listed {
    objects: Vec<ObjectDigest>,
    /// How often it was asked.
    times: usize,
}

impl Asked {
    fn note(&mut self, end: usize, objects: Vec<ObjectDigest>) {
        let times = self.ends.get(&end).map_or(0, |before| before.times) + 1;
        self.ends.insert(end, Listed { objects, times });
    }

    /// Whether the store must be asked for an end. It is asked once more if the index has lost objects that the store
    /// listed: the removal that arrived in the meantime may be older than the listing, or already lifted.
    fn wants(&self, end: usize, is_lost: impl FnMut(&ObjectDigest) -> bool) -> bool {
        let Some(listed) = self.ends.get(&end) else { return true };
        listed.times <= limits::FRESH_LOOKS_MAX && listed.objects.iter().any(is_lost)
    }

    /// Whether the store listed an object of a chunk that ends after block `at`.
    fn lists_behind(&self, at: usize) -> bool {
        self.ends.iter().any(|(end, listed)| *end > at && !listed.objects.is_empty())
    }
}

/// Finds stored prefixes.
#[derive(Debug)]
pub(crate) struct Lookups {
    catalog: Arc<Catalog>,
    reads: Arc<Reads>,
    probes: Probes,
    chains: ChainCache,
}

impl Lookups {
    pub(crate) fn new(catalog: Arc<Catalog>, reads: Arc<Reads>, probes: Probes) -> Self {
        Self { catalog, reads, probes, chains: ChainCache::new() }
    }

    /// The longest usable prefix of the query.
    ///
    /// # Errors
    /// [`CatalogError::UnknownModel`]; [`Store`](CatalogError::Store) if the store cannot be asked and the
    /// index knows nothing.
    pub(crate) async fn lookup(&self, lookup: &Lookup) -> Result<LookupResponse, CatalogError> {
        let Lookup { tenant, namespace, model_id, query, fresh, hint } = lookup;
        let (newest, earlier) = self.catalog.roots(tenant, namespace, model_id).await?;
        let reuse = self.catalog.model(tenant, model_id).await?.reuse;
        let within = LookupScope { tenant, model_id, scope: Scope::new(tenant, model_id), fresh: *fresh };
        let mut best = self.find(within, newest, &earlier, query).await?;
        if *fresh {
            for look in 0.. {
                let Some(removed) = self.forget_removed(within, &best.walk).await else { break };
                if look == limits::FRESH_LOOKS_MAX {
                    // Under constant stores and removals the match is shorter, but never includes removed chunks.
                    best.walk.truncate(removed);
                    best.is_whole = false;
                    break;
                }
                best = self.find(within, newest, &earlier, query).await?;
            }
        }
        let RootMatch { blocks, walk, is_whole } = best;
        // A cache thinned with look-ahead is only usable as a whole.
        let usable = reuse == Reuse::Prefix || is_whole;
        if !usable {
            return Ok(LookupResponse { matched_tokens: 0, chunks: Vec::new() });
        }
        let class = self.reads.note_lookup(tenant, model_id, hint, &blocks, &walk);
        let mut answer = response(walk);
        let media = self.reads.media(within.scope, &answer.chunks);
        for (chunk, medium) in answer.chunks.iter_mut().zip(media) {
            self.reads.index().note_use(within.scope, chunk.object_digest, class);
            chunk.medium = medium;
        }
        Ok(answer)
    }

    /// The longest match under the roots of a namespace.
    async fn find<'a>(
        &self,
        lookup: LookupScope<'_>,
        newest: RootHash,
        earlier: &[RootHash],
        query: &'a Query,
    ) -> Result<RootMatch<'a>, StoreError> {
        let mut best = self.look(lookup, newest, query).await?;
        // Until they expire, earlier salts of the namespace are searched if the newest one does not match as far.
        for root in earlier {
            if best.is_whole {
                break;
            }
            let other = self.look(lookup, *root, query).await?;
            if other.is_whole || other.walk.matched_blocks() > best.walk.matched_blocks() {
                best = other;
            }
        }
        Ok(best)
    }

    /// Asks the store for tombstones of the matched chunks. If a chunk's object has one, removes all objects
    /// of the chunk with a tombstone from the index. Returns the first such chunk of the walk.
    async fn forget_removed(&self, lookup: LookupScope<'_>, walk: &Walk) -> Option<usize> {
        let keys: Vec<ChunkKey> = walk.chunks.iter().map(|chunk| lookup.key(chunk)).collect();
        let mut answers = stream::iter(keys.into_iter().enumerate())
            .map(async |(at, key)| self.removed_beside(lookup.scope, &key).await.map(|removed| (at, removed)))
            .buffer_unordered(self.probes.parallel.max(1));
        let mut first: Option<usize> = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok((_, None)) => {}
                Ok((at, Some(removed))) => {
                    for (object, reason) in removed {
                        self.reads.forget_removed(lookup.scope, object, reason);
                    }
                    first = Some(first.map_or(at, |first| first.min(at)));
                }
                Err(error) => {
                    tracing::warn!(%error, "a fresh lookup could not check tombstones and uses the index alone");
                    break;
                }
            }
        }
        first
    }

    /// If an object has a tombstone: all objects of its chunk that have one and are not known to, with the
    /// reasons. A replica that has not learned of a removal would otherwise offer them one after another,
    /// including those that the journal is about to report.
    async fn removed_beside(
        &self,
        scope: Scope,
        key: &ChunkKey,
    ) -> Result<Option<Vec<(ObjectDigest, Removal)>>, StoreError> {
        let (tombstones, index) = (self.reads.tombstones(), self.reads.index());
        if !tombstones.has(key).await? {
            return Ok(None);
        }
        let removed = tombstones.of_chunk(&key.tenant, &key.model_id, &key.seq_hash).await?;
        stream::iter(removed.into_iter().filter(|object| !index.is_gone(scope, *object)))
            .map(async |object_digest| {
                let reason = tombstones.reason(&ChunkKey { object_digest, ..key.clone() }).await?;
                Ok((object_digest, reason.unwrap_or(Removal::Removed)))
            })
            .buffer_unordered(self.probes.parallel.max(1))
            .try_collect()
            .await
            .map(Some)
    }

    async fn look<'a>(
        &self,
        lookup: LookupScope<'_>,
        root: RootHash,
        query: &'a Query,
    ) -> Result<RootMatch<'a>, StoreError> {
        let index = self.reads.index().index();
        let mut emptied = index.emptied();
        let mut found = self.look_once(lookup, root, query).await?;
        for _ in 1..limits::FRESH_LOOKS_MAX {
            // Rows that it had found or added are gone, and the rest of the store was not asked.
            if found.is_whole || index.emptied() == emptied {
                break;
            }
            emptied = index.emptied();
            found = self.look_once(lookup, root, query).await?;
        }
        Ok(found)
    }

    async fn look_once<'a>(
        &self,
        lookup: LookupScope<'_>,
        root: RootHash,
        query: &'a Query,
    ) -> Result<RootMatch<'a>, StoreError> {
        let blocks = match query {
            Query::Chunks(chunks) => {
                let walk = self.walk_chunks(lookup, &root.first_parent(), chunks).await?;
                let is_whole = walk.chunks.len() == chunks.len();
                return Ok(RootMatch { blocks: chunks.into(), walk, is_whole });
            }
            Query::Blocks(blocks) => Cow::from(blocks),
            Query::Tokens(tokens) => Cow::from(self.chains.blocks(root, tokens)),
        };
        let walk = self.walk(lookup, &root.first_parent(), &blocks).await?;
        let is_whole = walk.whole_blocks == blocks.len();
        Ok(RootMatch { blocks, walk, is_whole })
    }

    async fn walk(
        &self,
        lookup: LookupScope<'_>,
        root: &[u8; 32],
        blocks: &[SeqHash],
    ) -> Result<Walk, StoreError> {
        let mut asked = Asked::default();
        let (mut round, mut search, mut settled) = (0, Search::Fast, None);
        loop {
            let walk = self.reads.index().walk(lookup.scope, root, blocks, search);
            if walk.whole_blocks >= blocks.len() {
                return Ok(walk);
            }
            let found = self.probe_round(lookup, blocks, walk.whole_blocks, round, &mut asked).await;
            match found {
                // A fast walk may not see it; or it was removed before the walk, and added before the query.
                Ok(0)
                    if asked.lists_behind(walk.whole_blocks)
                        && settled.is_none_or(|at| at < walk.whole_blocks) =>
                {
                    (search, settled) = (Search::Thorough, Some(walk.whole_blocks));
                }
                Ok(0) => return Ok(walk),
                Ok(_) => (round, settled) = (round + 1, None),
                // The index still has a partial answer, which is better than none; reads will verify it.
                Err(error) if walk.matched_blocks() > 0 => {
                    tracing::warn!(%error, "a lookup could not ask the store and uses the index alone");
                    return Ok(walk);
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn walk_chunks(
        &self,
        lookup: LookupScope<'_>,
        root: &[u8; 32],
        chunks: &[SeqHash],
    ) -> Result<Walk, StoreError> {
        let mut asked = Asked::default();
        for round in 0.. {
            let rows = self.reads.index().walk_chunks(lookup.scope, root, chunks);
            let known = rows.len();
            if known == chunks.len() {
                return Ok(Walk::of_rows(rows));
            }
            let count = limits::PROBE_ROUNDS[round.min(limits::PROBE_ROUNDS.len() - 1)];
            let ends = ends(known, chunks.len(), 1, count);
            match self.probe(lookup, chunks, &ends, &mut asked).await {
                Ok(0) => return Ok(Walk::of_rows(rows)),
                Ok(_) => {}
                Err(error) if known > 0 => {
                    tracing::warn!(%error, "a lookup could not ask the store and uses the index alone");
                    return Ok(Walk::of_rows(rows));
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the rounds end when nothing new is found")
    }

    /// Asks the store for chunks after block `from`. Returns how many were found.
    async fn probe_round(
        &self,
        lookup: LookupScope<'_>,
        blocks: &[SeqHash],
        from: usize,
        round: usize,
        asked: &mut Asked,
    ) -> Result<usize, StoreError> {
        let chunks = limits::PROBE_ROUNDS[round.min(limits::PROBE_ROUNDS.len() - 1)];
        let stride = (self.probes.chunk_tokens / BLOCK_TOKENS).max(1);
        let likely = ends(from, blocks.len(), stride, chunks);
        let found = self.probe(lookup, blocks, &likely, asked).await?;
        if found > 0 {
            return Ok(found);
        }
        let step = CHUNK_TOKENS_STEP / BLOCK_TOKENS;
        let other = ends(from, blocks.len(), step, stride / step);
        self.probe(lookup, blocks, &other, asked).await
    }

    async fn probe(
        &self,
        lookup: LookupScope<'_>,
        blocks: &[SeqHash],
        ends: &[usize],
        asked: &mut Asked,
    ) -> Result<usize, StoreError> {
        let index = self.reads.index();
        let wanted = ends.iter().filter_map(|&end| {
            let seq_hash = *blocks.get(end.checked_sub(1)?)?;
            let wants = asked.wants(end, |object| index.has_lost(lookup.scope, *object))
                && (lookup.fresh || !index.is_missing(lookup.scope, seq_hash));
            wants.then_some((end, seq_hash))
        });
        let wanted: Vec<(usize, SeqHash)> = wanted.collect();
        let mut answers = stream::iter(wanted)
            .map(async |(end, seq_hash)| (end, self.fill(lookup, seq_hash).await))
            .buffer_unordered(self.probes.parallel.max(1));
        let mut found = 0;
        while let Some((end, listed)) = answers.next().await {
            let listed = listed?;
            found += listed.len();
            asked.note(end, listed);
        }
        Ok(found)
    }

    /// Adds the objects of a chunk that have no tombstone from the store to the index. Returns them.
    async fn fill(
        &self,
        lookup: LookupScope<'_>,
        seq_hash: SeqHash,
    ) -> Result<Vec<ObjectDigest>, StoreError> {
        let (removals, asked) = (self.reads.index().removals(), Instant::now());
        let keys = self.reads.offered_objects(lookup.tenant, lookup.model_id, &seq_hash).await?;
        let (mut found, mut lost_key) = (Vec::new(), None);
        for key in &keys {
            match self.fill_one(lookup, key, removals).await {
                Ok(()) => found.push(key.object_digest),
                Err(ChunkError::Store(error @ StoreError::KeyLost { .. })) => lost_key = Some(error),
                Err(ChunkError::Store(error)) => return Err(error),
                Err(ChunkError::Unknown { .. }) => {}
                Err(error) => tracing::warn!(%error, "skipping an object that cannot be read"),
            }
        }
        if let Some(error) = lost_key.filter(|_| found.is_empty()) {
            return Err(error);
        }
        if found.is_empty() {
            self.reads.index().note_missing(lookup.scope, seq_hash, asked);
        }
        Ok(found)
    }

    async fn fill_one(
        &self,
        lookup: LookupScope<'_>,
        key: &ChunkKey,
        removals: u64,
    ) -> Result<(), ChunkError> {
        let index = self.reads.index();
        let known = index.entry(lookup.scope, key.object_digest);
        let entry = match known.filter(|entry| entry.row.seq_hash == key.seq_hash) {
            Some(entry) => entry,
            None => Arc::new(IndexEntry::of_head(&self.reads.read_head(key).await?, key.object_digest)),
        };
        index.insert_listed(lookup.scope, &entry, removals);
        index.note_row(lookup.scope, &entry.row);
        Ok(())
    }
}

/// Ends of the next `chunks` chunks after block `from`, if they have `stride` blocks each; and the end of the
/// request, where a tail could end.
fn ends(from: usize, blocks: usize, stride: usize, chunks: usize) -> Vec<usize> {
    let mut ends: Vec<usize> = (1..=chunks)
        .map(|i| from.saturating_add(i.saturating_mul(stride)))
        .take_while(|&end| end < blocks)
        .collect();
    if ends.len() < chunks {
        ends.push(blocks);
    }
    ends
}

fn response(walk: Walk) -> LookupResponse {
    let mut first_token = 0;
    let chunks = walk.chunks.into_iter().map(|chunk| {
        let found = chunk_match(chunk, first_token);
        first_token += u64::from(found.matched_tokens);
        found
    });
    let chunks = chunks.collect();
    LookupResponse { matched_tokens: first_token, chunks }
}

fn chunk_match(chunk: MatchedChunk, first_token: u64) -> ChunkMatch {
    let (matched_tokens, row) = (chunk.matched_tokens(), chunk.row);
    ChunkMatch {
        seq_hash: row.seq_hash,
        object_digest: row.object_digest,
        profile_hash: row.profile_hash,
        first_token,
        tokens: row.token_count,
        matched_tokens,
        bytes: row.object_bytes,
        head_bytes: u64::from(row.head_bytes),
        level_bytes: row.level_bytes,
        kl_beneath: row.kl_beneath,
        errors: row.errors,
        medium: Medium::Object,
        via: Via::Proxy,
    }
}
