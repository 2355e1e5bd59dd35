//! Contexts of a large index that lookups ask for.

use anyhow::Result;
use kvasir_load_tests::rows::{CHUNK_TOKENS, Context, Place, fill};
use kvasir_types::{RootHash, SeqHash};

use crate::{calls::Tenant, world::World};

/// Chunks of a context, and its tokens.
pub(crate) const CHUNKS: usize = 16;
pub(crate) const TOKENS: usize = CHUNKS * CHUNK_TOKENS;
/// Page cache of the index while it is filled.
const INDEX_MEMORY: u64 = 64 << 20;

/// The chunks of a context of rows.
pub(crate) fn chunk_ids(root: RootHash, context: usize) -> Vec<SeqHash> {
    Context::made_up(root, context, CHUNKS).chunk_ids()
}

/// Fills the index of the first replica, which is not running, with whole contexts until there are `rows` rows.
pub(crate) fn insert(world: &World, tenant: &Tenant, rows: usize) -> Result<()> {
    let place = Place {
        cache: &world.replicas[0].cache,
        store_identity: world.store_identity()?,
        memory_bytes: INDEX_MEMORY,
        model_id: tenant.model_id,
    };
    fill(place, (0..rows.div_ceil(CHUNKS)).map(|context| Context::made_up(tenant.root, context, CHUNKS)))
}
