//! A large hot index without as many objects: rows for chunks that only lookups ask for.

use std::{path::Path, sync::Arc};

use anyhow::Result;
use kvasir_storage::index::{Index, IndexEntry, IndexRow, Scope};
use kvasir_tests::chunks;
use kvasir_types::{BLOCK_TOKENS, ProfileHash, RootHash, SeqHash};

use crate::calls::Tenant;

/// Chunks of a context of rows, and tokens of a chunk.
pub(crate) const CHUNKS: usize = 16;
pub(crate) const CHUNK_TOKENS: usize = 1536;
const CHUNK_BLOCKS: usize = CHUNK_TOKENS / BLOCK_TOKENS;
/// Page cache of the index while it is filled.
const INDEX_MEMORY: u64 = 64 << 20;

/// Block hashes of a context of rows: made up, because nobody has its tokens.
fn blocks(root: RootHash, context: usize) -> Vec<SeqHash> {
    let mut bytes = vec![0; CHUNK_BLOCKS * CHUNKS * 32];
    let mut hasher = blake3::Hasher::new();
    hasher.update(root.as_bytes()).update(&context.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes.as_chunks().0.iter().map(|hash| SeqHash::from(*hash)).collect()
}

/// The chunks of a context of rows.
pub(crate) fn chunk_ids(root: RootHash, context: usize) -> Vec<SeqHash> {
    blocks(root, context).into_iter().skip(CHUNK_BLOCKS - 1).step_by(CHUNK_BLOCKS).collect()
}

fn entry(root: RootHash, blocks: &[SeqHash], chunk: usize) -> IndexEntry {
    let own = &blocks[chunk * CHUNK_BLOCKS..][..CHUNK_BLOCKS];
    let last = own[CHUNK_BLOCKS - 1];
    let parent =
        chunk.checked_sub(1).map_or(*root.as_bytes(), |_| *blocks[chunk * CHUNK_BLOCKS - 1].as_bytes());
    IndexEntry {
        parent_hash: parent,
        blocks: IndexEntry::short_blocks(own.iter().map(|b| &b.as_bytes()[..])),
        row: Arc::new(IndexRow {
            seq_hash: last,
            object_digest: (*last.as_bytes()).into(),
            profile_hash: ProfileHash::of(chunks::PROFILE),
            first_position: (chunk * CHUNK_TOKENS) as u64,
            token_count: CHUNK_TOKENS as u32,
            kl_beneath: 0.0,
            head_bytes: 8_000,
            object_bytes: 16 << 20,
            level_bytes: vec![4 << 20, 16 << 20],
        }),
    }
}

/// Fills the index of a replica that is not running, whole contexts until there are `rows` rows.
pub(crate) fn insert(cache: &Path, store_identity: &[u8; 32], tenant: &Tenant, rows: usize) -> Result<()> {
    let index = Index::sled(cache.to_owned(), *store_identity, INDEX_MEMORY)?;
    let scope = Scope::new(&"default".parse()?, &tenant.model_id);
    for context in 0..rows.div_ceil(CHUNKS) {
        let blocks = blocks(tenant.root, context);
        (0..CHUNKS).for_each(|chunk| index.insert(scope, &entry(tenant.root, &blocks, chunk)));
    }
    index.flush();
    Ok(())
}
