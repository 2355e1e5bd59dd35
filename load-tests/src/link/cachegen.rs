//! LMCache's CacheGen, by LMCache itself: its own encoder and decoder on the CPU, in a Python of theirs.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use kvasir_replay::link::LinkOptions;
use kvasir_types::Plane;
use serde::Deserialize;
use tempfile::TempDir;

use super::{
    blobs::{BlobServer, plane},
    synthetic::{DIM, HEADS},
};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/cachegen.py");

/// The result.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheGen {
    pub(super) bytes: u64,
    /// From the first request to the last decoded row.
    pub(super) end_to_end: Duration,
}

/// The script's output.
#[derive(Debug, Deserialize)]
struct ScriptOutput {
    seconds: f64,
}

/// One chunk as LMCache has it in memory: bf16, `[K and V][layer][token][channel]`.
fn raw(layers: usize, first: usize, tokens: usize) -> Vec<u8> {
    let planes = Plane::ALL.into_iter().flat_map(|which| (0..layers).map(move |layer| (layer, which)));
    let rows = planes.flat_map(|(layer, which)| plane(layer, which, first, tokens));
    rows.flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

async fn script(python: &Path, arguments: &[String]) -> Result<ScriptOutput> {
    let mut command = Command::new(python);
    command.arg(SCRIPT).args(arguments).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await?;
    let output = output.with_context(|| format!("starting {}", python.display()))?;
    let error = String::from_utf8_lossy(&output.stderr);
    let last: Vec<_> = error.lines().rev().take(5).collect();
    ensure!(output.status.success(), "{SCRIPT} {}: {}", arguments[0], last.join(" / "));
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_default()).context("parsing the output of the script")
}

/// Encodes the context in chunks of `chunk_tokens`, then fetches and decodes it over the link.
pub(super) async fn measure(
    python: &Path,
    (layers, tokens): (usize, usize),
    chunk_tokens: usize,
    link: LinkOptions,
) -> Result<CacheGen> {
    ensure!(
        python.exists(),
        "{} does not exist; create it with load-tests/peers/lmcache FOLDER",
        python.display()
    );
    let directory = TempDir::new()?;
    let firsts: Vec<usize> = (0..tokens).step_by(chunk_tokens).collect();
    for (nth, first) in firsts.iter().enumerate() {
        let count = chunk_tokens.min(tokens - first);
        std::fs::write(directory.path().join(format!("{nth:04}.raw")), raw(layers, *first, count))?;
    }
    let folder = directory.path().display().to_string();
    let numbers = [layers, HEADS, DIM, chunk_tokens].map(|number| number.to_string());
    script(python, &[&["encode".to_owned(), folder.clone()], &numbers[..]].concat()).await?;
    let read = |nth| std::fs::read(directory.path().join(format!("{nth:04}.cachegen")));
    let blobs: Vec<Vec<u8>> = (0..firsts.len()).map(read).collect::<std::io::Result<_>>()?;
    let bytes = blobs.iter().map(|blob| blob.len() as u64).sum();
    let sizes: Vec<String> = blobs.iter().map(|blob| blob.len().to_string()).collect();
    let served = BlobServer::start(Arc::new(blobs), link).await?;
    let port = served.link.address().port().to_string();
    let loading = [&["load".to_owned(), folder], &numbers[..], &[port, sizes.join(",")]].concat();
    let printed = script(python, &loading).await?;
    served.end().await?;
    Ok(CacheGen { bytes, end_to_end: Duration::from_secs_f64(printed.seconds) })
}
