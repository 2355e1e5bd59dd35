//! Resident memory of the service under many uploads and downloads at once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use anyhow::Result;
use futures::{StreamExt as _, stream};
use kvasir_api::routes;
use kvasir_tests::{chunks, service::Api};
use reqwest::{Body, Method};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{Common, servers, stats};

/// Spans of a chunk of 1,536 tokens, times two levels.
const PIECES: usize = 12;

/// Watches a process's memory until it is dropped.
struct Watch {
    ended: Arc<AtomicBool>,
    highest: Arc<AtomicU64>,
}

impl Watch {
    fn start(pid: u32) -> Self {
        let (ended, highest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let this = Self { ended: Arc::clone(&ended), highest: Arc::clone(&highest) };
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                highest.fetch_max(servers::resident(pid).unwrap_or(0), Ordering::Relaxed);
                crate::pause(0.01);
            }
        });
        this
    }

    fn end(self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        self.highest.load(Ordering::Relaxed)
    }
}

pub(crate) fn measure(runtime: &Runtime, common: &Common, at_once: usize, bytes: usize) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let store = servers::store(common, directory.path())?;
    let service = servers::kvasir(common, &store.config, directory.path())?;
    let remote = Api::at(service.address);
    runtime.block_on(async {
        let (model_id, root) = remote.prepare("n").await;
        let idle = servers::resident(service.id())?;
        // One body in this process's memory, whatever their number: chunks differ in their tokens alone.
        let watch = Watch::start(service.id());
        let made = |i: usize| chunks::chunk(root, &chunks::tokens(i as u64, 1536), 0, 1536, bytes / PIECES);
        let uploads = stream::iter(0..at_once).map(|i| {
            let remote = &remote;
            async move {
                let chunk = made(i);
                let path = routes::chunk(&model_id, &chunk.seq_hash);
                let object = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
                let size = chunk.bytes.len();
                let bytes = bytes::Bytes::from(chunk.bytes);
                // Slices of one buffer, as a socket takes them.
                let parts = (0..size).step_by(256 << 10).map(move |at| {
                    Ok::<_, std::io::Error>(bytes.slice(at..(at + (256 << 10)).min(size)))
                });
                let put = remote.send(Method::PUT, &path, Body::wrap_stream(stream::iter(parts))).await;
                (put.status().as_u16(), object, size)
            }
        });
        let stored: Vec<_> = uploads.buffer_unordered(at_once).collect().await;
        let uploading = watch.end();
        let mut statuses = std::collections::BTreeMap::new();
        for (status, ..) in &stored {
            *statuses.entry(*status).or_insert(0u32) += 1;
        }
        let watch = Watch::start(service.id());
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
        Ok(json!({
            "what": format!("resident memory, {at_once} uploads then downloads of {} MiB at once", bytes >> 20),
            "machine": stats::machine(),
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
