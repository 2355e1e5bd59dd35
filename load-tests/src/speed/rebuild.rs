//! How fast a lost index is rebuilt: from the heads of all objects in the store, and from the journal.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures::stream;
use kvasir_storage::{PutChunk, Settings, Storage, index::Index};
use kvasir_store::{OpenStore, StoreConfig, observe::NoObserver};
use kvasir_tests::chunks;
use kvasir_types::{Name, ProfileHash, RootHash};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{arguments::SpeedArguments, servers, stats};
use crate::{index_rows::CHUNK_TOKENS, process::usage};

/// Bytes per piece: objects are small, because a rebuild reads only heads.
const PIECE_BYTES: usize = 100;
/// Chunks of a context.
const CONTEXT_CHUNKS: usize = 10;

fn body(bytes: Vec<u8>) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send {
    stream::iter([Ok(Bytes::from(bytes))])
}

/// Fills the store, with a journal.
async fn fill(store: &StoreConfig, directory: &Path, count: usize) -> Result<()> {
    let open = OpenStore::open(store, Arc::new(NoObserver))?;
    let abilities = open.probe().await?;
    let storage =
        Storage::new(open, abilities, Index::memory(), Settings::new(directory.join("spool")), None);
    let (tenant, namespace): (Name, Name) = ("default".parse()?, "n".parse()?);
    let (model_id, hash) = (chunks::spec().model_id(), ProfileHash::of(chunks::PROFILE));
    storage.ingest().register_model(&tenant, chunks::spec(), None).await?;
    storage.ingest().put_profile(&tenant, &model_id, &hash, None, body(chunks::PROFILE.to_vec())).await?;
    let root: RootHash = storage.catalog().root(&tenant, &namespace, &model_id).await?;
    for context in 0..count / CONTEXT_CHUNKS {
        let tokens = chunks::tokens(context as u64, CONTEXT_CHUNKS * CHUNK_TOKENS);
        for chunk in chunks::context(root, &tokens, CHUNK_TOKENS, PIECE_BYTES) {
            storage
                .ingest()
                .put_chunk(PutChunk::new(&tenant, &model_id, &chunk.seq_hash), body(chunk.bytes))
                .await?;
        }
        if context % 50 == 49 {
            storage.changes().journal_append().await?;
        }
    }
    storage.changes().journal_append().await?;
    Ok(())
}

/// Chunks per second of one `kvasir admin rebuild-index`, including its start and end.
fn rate(
    common: &SpeedArguments,
    store: &servers::StoreUnderTest,
    cache: &Path,
    count: usize,
    flags: &[&str],
) -> Result<f64> {
    let mut command = Command::new(&common.kvasir);
    command.args(["admin", "rebuild-index", "--json"]).args(flags);
    servers::over(&mut command, &store.config);
    command.arg("--cache.directory").arg(cache).args(["--log.filter", "warn"]).stdout(Stdio::piped());
    let start = Instant::now();
    let output = command.stderr(Stdio::null()).output().context("starting kvasir admin rebuild-index")?;
    let seconds = start.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "kvasir admin rebuild-index ended with {}: {said}", output.status);
    let done: Value = serde_json::from_str(&said)?;
    ensure!(done["indexed"].as_u64() == Some(count as u64), "{done} instead of {count}");
    Ok(count as f64 / seconds)
}

pub(crate) fn measure(runtime: &Runtime, common: &SpeedArguments, count: usize) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let store = servers::store(common, directory.path())?;
    runtime.block_on(fill(&store.config, directory.path(), count))?;
    let cache = directory.path().join("cache");
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..common.pairs {
        rates[0].push(rate(common, &store, &cache, count, &[])?);
        rates[1].push(rate(common, &store, &cache, count, &["--journal"])?);
    }
    Ok(json!({
        "what": format!("kvasir admin rebuild-index of {count} chunks of {CHUNK_TOKENS} tokens, process start to end"),
        "machine": usage::machine(),
        "store": common.store,
        "s3_server": common.s3.as_deref().unwrap_or("in-process S3 of the tests, as a process"),
        "from_listing_chunks_per_second": stats::median(&rates[0]),
        "from_journal_chunks_per_second": stats::median(&rates[1]),
        "raw": { "from_listing": rates[0], "from_journal": rates[1] },
    }))
}
