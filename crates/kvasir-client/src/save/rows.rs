//! Where the rows of a save come from.

use std::{ops::Range, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use kvasir_codec::{KvBuffer, KvSource, Tokens};
use kvasir_types::{ModelSpec, Plane};

use crate::{
    Error,
    pages::{BlockTable, Shard},
};

/// The KV of a context, from token 0 on.
#[derive(Clone, Copy)]
pub(super) enum SaveRows<'a> {
    /// Memory of this process.
    Source(&'a dyn KvSource),
    /// Pages of the ranks, which hold everything together.
    Pages(&'a [BlockTable]),
}

/// The KV of a context in the queue.
pub(super) enum QueuedRows {
    Source(Arc<dyn KvSource + Send + Sync>),
    Pages(Vec<BlockTable>),
}

impl QueuedRows {
    pub(super) fn rows(&self) -> SaveRows<'_> {
        match self {
            Self::Source(source) => SaveRows::Source(&**source),
            Self::Pages(tables) => SaveRows::Pages(tables),
        }
    }
}

impl SaveRows<'_> {
    /// A copy that outlives the caller's borrow, so that encoding can run elsewhere; one chunk at a time.
    ///
    /// # Errors
    /// [`Error::UnreadablePages`] if pages were reassigned or cannot be read, or if reading the source panics.
    pub(super) async fn copy(self, spec: &Arc<ModelSpec>, range: &Range<usize>) -> Result<KvBuffer, Error> {
        match self {
            // It is the engine's code, and the queue has other saves.
            Self::Source(source) => {
                let copied = AssertUnwindSafe(copy_source(source, spec, range)).catch_unwind().await;
                copied.map_err(|_| Error::UnreadablePages { what: "reading them panicked".to_owned() })
            }
            Self::Pages(tables) => copy_pages(tables, spec, range).await,
        }
    }
}

async fn copy_source(source: &dyn KvSource, spec: &ModelSpec, range: &Range<usize>) -> KvBuffer {
    let mut rows = KvBuffer::new(spec, range.len());
    let source = Tokens::from(source, range.start);
    for layer in 0..spec.layers.len() {
        for plane in Plane::ALL {
            for head in 0..rows.heads(layer, plane) {
                source.read(layer, plane, head, 0..range.len(), rows.rows_mut(layer, plane, head));
            }
        }
        tokio::task::yield_now().await;
    }
    rows
}

/// Layer by layer on a blocking thread, because a device is waited for: a save that is dropped reads at most one more.
async fn copy_pages(
    tables: &[BlockTable],
    spec: &Arc<ModelSpec>,
    range: &Range<usize>,
) -> Result<KvBuffer, Error> {
    let mut rows = KvBuffer::new(spec, range.len());
    for (index, table) in tables.iter().enumerate() {
        let held = &table.shard().layers;
        for layer in held.start..held.end.min(spec.layers.len()) {
            // A latent, and a head that ranks share, is read once.
            if is_held(&tables[..index], table.shard(), spec, layer) {
                continue;
            }
            let (table, spec, range) = (table.clone(), Arc::clone(spec), range.clone());
            let read = move || {
                let outcome = table.read(&spec, layer, &range, &mut rows);
                (rows, outcome)
            };
            let outcome;
            (rows, outcome) = tokio::task::spawn_blocking(read).await?;
            let what = match outcome {
                Ok(true) => continue,
                Ok(false) => "one of them was given to another request before it was read".to_owned(),
                Err(reason) => reason,
            };
            return Err(Error::UnreadablePages { what });
        }
    }
    Ok(rows)
}

/// Whether tables hold everything that a shard holds of a layer.
fn is_held(tables: &[BlockTable], shard: &Shard, spec: &ModelSpec, layer: usize) -> bool {
    let is_plane_held =
        |(count, _)| shard.heads_of(count).all(|head| is_head_held(tables, layer, count, head));
    spec.layers[layer].layout.planes().into_iter().all(is_plane_held)
}

/// Whether one of the tables holds a head of a layer's plane, which has `count`.
fn is_head_held(tables: &[BlockTable], layer: usize, count: usize, head: usize) -> bool {
    let mut shards = tables.iter().map(BlockTable::shard);
    shards.any(|shard| shard.layers.contains(&layer) && shard.heads_of(count).contains(&head))
}

/// Checks that tables hold the KV of the first `tokens` tokens: what no rank holds would be stored as zeros.
///
/// # Errors
/// [`Error::Config`] if they do not.
pub(super) fn check_tables(tables: &[BlockTable], spec: &ModelSpec, tokens: usize) -> Result<(), Error> {
    if let Some(short) = tables.iter().find(|table| table.tokens() < tokens as u64) {
        let room = short.tokens();
        let what = format!("a block table has {room} tokens, but {tokens} are to be saved: save fewer");
        return Err(Error::Config { what });
    }
    for (layer, kv) in spec.layers.iter().enumerate() {
        for (count, _) in kv.layout.planes() {
            if let Some(head) = (0..count).find(|head| !is_head_held(tables, layer, count, *head)) {
                let what =
                    format!("no table holds head {head} of layer {layer}: give the tables of all ranks");
                return Err(Error::Config { what });
            }
        }
    }
    Ok(())
}
