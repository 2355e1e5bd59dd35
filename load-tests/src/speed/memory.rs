//! Resident memory of the service with many concurrent uploads and downloads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use kvasir_api::routes;
use kvasir_container::ChunkHeader;
use kvasir_tests::{chunks, service::Api};
use kvasir_types::{ModelId, ObjectDigest};
use reqwest::Body;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{arguments::SpeedArguments, put::put, servers};
use crate::process::{pause, usage};

/// Spans of a chunk of 1,536 tokens, times two levels.
const PIECES: usize = 12;
/// Bytes per write to the socket.
const SENT_BYTES: usize = 256 << 10;

/// Watches a process's memory until it is dropped.
struct MemoryWatch {
    ended: Arc<AtomicBool>,
    highest: Arc<AtomicU64>,
}

impl MemoryWatch {
    fn start(pid: u32) -> Self {
        let (ended, highest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let this = Self { ended: Arc::clone(&ended), highest: Arc::clone(&highest) };
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                highest.fetch_max(usage::resident_bytes(pid).unwrap_or(0), Ordering::Relaxed);
                pause(Duration::from_millis(10));
            }
        });
        this
    }

    fn end(self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        self.highest.load(Ordering::Relaxed)
    }
}

/// A chunk to upload. All share one payload in memory: chunks differ only in their heads.
struct Upload {
    path: String,
    object: String,
    size: usize,
    digest: ObjectDigest,
    parts: Box<dyn Iterator<Item = Bytes> + Send>,
}

impl Upload {
    fn new(model_id: &ModelId, chunk: chunks::Chunk, payload: &mut Option<Bytes>) -> Self {
        let (size, mut head) = (chunk.bytes.len(), Bytes::from(chunk.bytes));
        let head_bytes = ChunkHeader::parse(&head).map_or(0, |header| header.head_bytes() as usize);
        let own = head.split_off(head_bytes);
        let shared = payload.get_or_insert_with(|| own.clone());
        // A payload that differs after all is kept separately.
        let payload = if *shared == own { shared.clone() } else { own };
        let head = Bytes::copy_from_slice(&head);
        let slices = (0..payload.len()).step_by(SENT_BYTES);
        let slices = slices.map(move |at| payload.slice(at..(at + SENT_BYTES).min(payload.len())));
        Self {
            path: routes::chunk(model_id, &chunk.seq_hash),
            object: routes::chunk_object(model_id, &chunk.seq_hash, &chunk.object_digest),
            size,
            digest: chunk.object_digest,
            parts: Box::new(std::iter::once(head).chain(slices)),
        }
    }
}

/// Bytes that the service's settings allow with this many connections, and those of the hot tier among them.
fn configured(common: &SpeedArguments, connections: usize) -> Result<(u64, u64)> {
    let settings = common.settings.iter().filter_map(|setting| setting.split_once('='));
    let flags = std::iter::once(("store.url", "memory://")).chain(settings);
    let config = kvasir_tests::process_layers().with_flags(flags).load();
    let config = config.map_err(|error| anyhow::anyhow!("{error}"))?;
    let of_connections = config.server.connection_memory_bytes * connections as u64;
    let uploads = config.storage.spool_memory_bytes as u64;
    let hot_tier = config.hot.memory_bytes;
    Ok((hot_tier + config.cache.index_memory_bytes + uploads + of_connections, hot_tier))
}

pub(crate) fn measure(
    runtime: &Runtime,
    common: &SpeedArguments,
    at_once: usize,
    bytes: usize,
) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let store = servers::store(common, directory.path())?;
    let service = servers::kvasir(common, &store.config, directory.path())?;
    let remote = Api::at(service.address);
    runtime.block_on(async {
        let (model_id, root) = remote.prepare("n").await;
        let idle = usage::resident_bytes(service.id())?;
        // Made before anything is sent: a connection that stays silent this long would be closed.
        let mut payload: Option<Bytes> = None;
        let made: Vec<Upload> = (0..at_once)
            .map(|i| {
                let chunk = chunks::chunk(root, &chunks::tokens(i as u64, 1536), 0, 1536, bytes / PIECES);
                Upload::new(&model_id, chunk, &mut payload)
            })
            .collect();
        // Without the connection of before, which was silent for as long.
        let remote = Api::at(service.address);
        let watch = MemoryWatch::start(service.id());
        let uploads = stream::iter(made).map(|upload| {
            let remote = &remote;
            async move {
                let Upload { path, object, size, digest, parts } = upload;
                let parts = Body::wrap_stream(stream::iter(parts.map(Ok::<_, std::io::Error>)));
                let status = put(remote, &path, (size, digest), parts).await.expect("an answer");
                (status.as_u16(), object, size)
            }
        });
        let stored: Vec<_> = uploads.buffer_unordered(at_once).collect().await;
        let uploading = watch.end();
        let mut statuses = std::collections::BTreeMap::new();
        for (status, ..) in &stored {
            *statuses.entry(*status).or_insert(0u32) += 1;
        }
        let watch = MemoryWatch::start(service.id());
        let downloads = stream::iter(stored.iter().filter(|(status, ..)| *status < 300)).map(|(_, path, size)| {
            let remote = &remote;
            async move {
                let mut body = remote.get(path, &[]).await.bytes_stream();
                let mut read = 0;
                while let Some(Ok(part)) = body.next().await {
                    read += part.len();
                }
                read == *size
            }
        });
        let whole: Vec<bool> = downloads.buffer_unordered(at_once).collect().await;
        let downloading = watch.end();
        anyhow::ensure!(statuses.keys().all(|status| *status < 300), "uploads were refused: {statuses:?}");
        let mebibytes = |bytes: u64| bytes >> 20;
        let (allowed, hot_tier) = configured(common, at_once)?;
        let what = format!(
            "resident memory with that of the hot tier, {at_once} concurrent uploads, digest first, then downloads, of {} MiB",
            bytes >> 20
        );
        Ok(json!({
            "what": what,
            "mib_configured": mebibytes(allowed),
            "mib_configured_hot_tier": mebibytes(hot_tier),
            "machine": usage::machine(),
            "store": common.store,
            "settings": common.settings,
            "mib_idle": mebibytes(idle),
            "mib_uploading": mebibytes(uploading),
            "mib_downloading": mebibytes(downloading),
            "upload_statuses": statuses,
            "downloads_whole": whole.iter().filter(|whole| **whole).count(),
        }))
    })
}
