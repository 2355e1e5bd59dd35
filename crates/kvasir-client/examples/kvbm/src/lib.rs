//! Blocks of NVIDIA's KVBM as objects in Kvasir: `ObjectBlockOps` over the client's crate, in place of its S3 client.
//!
//! Against KVBM's S3 client: a batch of blocks is one request to each replica, a block that is read is compared with its checksums by the service, and a
//! block is never overwritten. `tests/kvbm/check` compiles it. It was not run with blocks: KVBM makes layouts through NIXL alone.

use std::{slice, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use kvasir_client::rest::Client;
use kvasir_types::{Name, ObjectKey};
use kvbm_engine::{
    BlockId, LogicalLayoutHandle, SequenceHash,
    object::{KeyFormatter, ObjectBlockOps},
};
use kvbm_physical::transfer::PhysicalLayout;

/// Most objects per request.
const BATCH: usize = 256;
/// Most bytes per request that stores: they are copied.
const BATCH_BYTES: usize = 64 << 20;

type Outcomes = Vec<Result<SequenceHash, SequenceHash>>;

/// Blocks in a namespace. The formatter must put everything into a key that makes blocks of equal hashes
/// incompatible: at least the rank.
#[derive(Clone)]
pub struct KvasirBlocks {
    client: Client,
    namespace: Name,
    formatter: Arc<dyn KeyFormatter>,
}

/// One contiguous part of a block.
struct Part {
    start: usize,
    bytes: usize,
}

impl KvasirBlocks {
    /// Blocks that `client` stores in a namespace.
    pub fn new(client: Client, namespace: Name, formatter: Arc<dyn KeyFormatter>) -> Self {
        Self { client, namespace, formatter }
    }

    fn key(&self, hash: &SequenceHash) -> Result<ObjectKey, String> {
        self.formatter.format_key(hash).parse().map_err(|error| format!("{error}"))
    }

    async fn sizes(&self, hashes: &[SequenceHash]) -> Result<Vec<Option<u64>>, String> {
        let keys = hashes.iter().map(|hash| self.key(hash)).collect::<Result<Vec<_>, _>>()?;
        self.client.lookup_opaque_each(&self.namespace, &keys).await.map_err(|error| error.to_string())
    }

    /// Stores blocks with one request. Says of each whether it is durable now, or something was there before.
    async fn put(&self, blocks: &[(SequenceHash, BlockId)], layout: &PhysicalLayout) -> Result<Vec<bool>, String> {
        let copies = blocks.iter().map(|(hash, block)| {
            let mut bytes = Vec::new();
            for part in parts(layout, *block)? {
                // SAFETY: KVBM keeps the layout's memory, and does not write a block that is being stored.
                bytes.extend_from_slice(unsafe { slice::from_raw_parts(part.start as *const u8, part.bytes) });
            }
            Ok((self.key(hash)?, Bytes::from(bytes)))
        });
        let objects = copies.collect::<Result<Vec<_>, String>>()?;
        let written = self.client.write_opaque(&self.namespace, &objects).await;
        let written = written.map_err(|error| error.to_string())?;
        let is_there = |code: &str| code == "object_exists";
        Ok(written
            .iter()
            .map(|written| written.problem.as_ref().is_none_or(|problem| is_there(problem.code.as_str())))
            .collect())
    }

    /// Loads the leading blocks with one request. Returns for each whether it was present.
    async fn get(&self, blocks: &[(SequenceHash, BlockId)], layout: &PhysicalLayout) -> Result<Vec<bool>, String> {
        let keys = blocks.iter().map(|(hash, _)| self.key(hash)).collect::<Result<Vec<_>, _>>()?;
        let into = blocks.iter().map(|(_, block)| parts(layout, *block)).collect::<Result<Vec<_>, _>>()?;
        let mut loaded = vec![false; blocks.len()];
        // Blocks of different replicas arrive at once.
        let mut came = vec![0; blocks.len()];
        let take = |index: usize, length: usize, mut piece: &[u8]| {
            let parts = &into[index];
            if length == parts.iter().map(|part| part.bytes).sum::<usize>() {
                // What came before may end within a part.
                let mut before = came[index];
                for part in parts {
                    let from = before.min(part.bytes);
                    before -= from;
                    let now = piece.len().min(part.bytes - from);
                    // SAFETY: KVBM keeps the layout's memory, and nobody else uses a block before it is loaded.
                    let place = unsafe { slice::from_raw_parts_mut((part.start + from) as *mut u8, now) };
                    place.copy_from_slice(&piece[..now]);
                    came[index] += now;
                    piece = &piece[now..];
                }
                loaded[index] = came[index] == length;
            }
        };
        self.client.read_opaque_pieces(&self.namespace, &keys, take).await.map_err(|error| error.to_string())?;
        Ok(loaded)
    }
}

/// The parts of a block, in the order of layers.
fn parts(layout: &PhysicalLayout, block: BlockId) -> Result<Vec<Part>, String> {
    let inner = layout.layout();
    let of_layer = |layer| (0..inner.outer_dim()).map(move |outer| (layer, outer));
    (0..inner.num_layers())
        .flat_map(of_layer)
        .map(|(layer, outer)| {
            let region = layout.memory_region(block, layer, outer).map_err(|error| error.to_string())?;
            Ok(Part { start: region.addr(), bytes: region.size() })
        })
        .collect()
}

/// Blocks per request that stores, of at most [`BATCH_BYTES`] together: all blocks of a layout have as many.
fn blocks_per_store(blocks: &[(SequenceHash, BlockId)], layout: &PhysicalLayout) -> usize {
    let first = blocks.first().and_then(|(_, block)| parts(layout, *block).ok());
    let bytes = first.map_or(0, |parts| parts.iter().map(|part| part.bytes).sum::<usize>());
    (BATCH_BYTES / bytes.max(1)).clamp(1, BATCH)
}

/// The results of blocks for KVBM; a failure applies to all of them, and is logged.
fn outcomes(blocks: &[(SequenceHash, BlockId)], done: Result<Vec<bool>, String>) -> Outcomes {
    let done = done.unwrap_or_else(|error| {
        tracing::warn!(%error, blocks = blocks.len(), "blocks were not moved");
        Vec::new()
    });
    let each = blocks.iter().zip(done.into_iter().chain(std::iter::repeat(false)));
    each.map(|((hash, _), is_done)| if is_done { Ok(*hash) } else { Err(*hash) }).collect()
}

impl ObjectBlockOps for KvasirBlocks {
    fn has_blocks(&self, hashes: Vec<SequenceHash>) -> BoxFuture<'static, Vec<(SequenceHash, Option<usize>)>> {
        let this = self.clone();
        let look = async move {
            let mut found = Vec::with_capacity(hashes.len());
            for batch in hashes.chunks(BATCH) {
                let sizes = this.sizes(batch).await.unwrap_or_else(|error| {
                    tracing::warn!(%error, "blocks count as missing");
                    vec![None; batch.len()]
                });
                let size = |size: Option<u64>| size.and_then(|size| usize::try_from(size).ok());
                found.extend(batch.iter().copied().zip(sizes.into_iter().map(size)));
            }
            found
        };
        look.boxed()
    }

    /// Nothing: a leader has no memory. Its workers have.
    fn put_blocks(
        &self,
        hashes: Vec<SequenceHash>,
        _: LogicalLayoutHandle,
        _: Vec<BlockId>,
    ) -> BoxFuture<'static, Outcomes> {
        futures::future::ready(hashes.into_iter().map(Err).collect()).boxed()
    }

    /// Nothing, as [`put_blocks`](Self::put_blocks).
    fn get_blocks(
        &self,
        hashes: Vec<SequenceHash>,
        _: LogicalLayoutHandle,
        _: Vec<BlockId>,
    ) -> BoxFuture<'static, Outcomes> {
        futures::future::ready(hashes.into_iter().map(Err).collect()).boxed()
    }

    fn put_blocks_with_layout(
        &self,
        hashes: Vec<SequenceHash>,
        layout: PhysicalLayout,
        block_ids: Vec<BlockId>,
    ) -> BoxFuture<'static, Outcomes> {
        let this = self.clone();
        let put = async move {
            let blocks: Vec<_> = hashes.into_iter().zip(block_ids).collect();
            let mut all = Vec::with_capacity(blocks.len());
            for batch in blocks.chunks(blocks_per_store(&blocks, &layout)) {
                all.extend(outcomes(batch, this.put(batch, &layout).await));
            }
            all
        };
        put.boxed()
    }

    fn get_blocks_with_layout(
        &self,
        hashes: Vec<SequenceHash>,
        layout: PhysicalLayout,
        block_ids: Vec<BlockId>,
    ) -> BoxFuture<'static, Outcomes> {
        let this = self.clone();
        let get = async move {
            let blocks: Vec<_> = hashes.into_iter().zip(block_ids).collect();
            let mut all = Vec::with_capacity(blocks.len());
            for batch in blocks.chunks(BATCH) {
                all.extend(outcomes(batch, this.get(batch, &layout).await));
            }
            all
        };
        get.boxed()
    }
}
