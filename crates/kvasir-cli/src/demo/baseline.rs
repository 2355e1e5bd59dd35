//! The alternatives to Kvasir, really run: recomputing the cache, and fetching it uncompressed over the same
//! link.

use std::time::{Duration, Instant};

use kvasir_engine::{Model, PagedKv, Sampling};

use kvasir_replay::link::{LinkOptions, ShapedLink};
use tokio::runtime::Runtime;

use super::{
    plain::Plain,
    source::{BytesSource, read_all},
};
use crate::{
    error::{CliError, CliResult},
    shipped::engine_error,
};

/// Time to first token when the cache is recomputed.
pub(crate) fn recompute(model: &Model, tokens: &[u32]) -> CliResult<Duration> {
    let started = Instant::now();
    let mut kv = model.new_kv().map_err(engine_error)?;
    first_token(model, &mut kv, tokens)?;
    Ok(started.elapsed())
}

/// A plain fetch: the bytes sent, and the time to first token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainFetch {
    /// Bytes sent over the link.
    pub(crate) bytes: u64,
    /// From the request to the first token.
    pub(crate) ttft: Duration,
}

/// Fetches the cache in a plain format over the link, unpacks it into pages and generates the first token.
pub(crate) fn fetch(
    runtime: &Runtime,
    link: &LinkOptions,
    plain: Plain,
    (model, exact): (&Model, &PagedKv),
    tokens: &[u32],
) -> CliResult<PlainFetch> {
    let packed = plain.pack(model.spec(), tokens.len(), exact);
    let size = packed.len();
    let (source, link) = runtime
        .block_on(async {
            let source = BytesSource::start(packed.into()).await?;
            let link = ShapedLink::start(source.address(), link.clone()).await?;
            std::io::Result::Ok((source, link))
        })
        .map_err(CliError::internal)?;
    link.restart();
    let started = Instant::now();
    let arrived = runtime.block_on(read_all(link.address(), size)).map_err(CliError::internal)?;
    let mut kv = into_pages(model, tokens.len(), |sink| {
        plain.unpack(model.spec(), tokens.len(), &arrived, sink).map_err(CliError::internal)
    })?;
    first_token(model, &mut kv, tokens)?;
    let ttft = started.elapsed();
    drop(source);
    Ok(PlainFetch { bytes: arrived.len() as u64, ttft })
}

/// The first token after `tokens`, over a cache that holds them. The last token is computed again, because
/// caches do not hold logits.
pub(crate) fn first_token(model: &Model, kv: &mut PagedKv, tokens: &[u32]) -> CliResult<u32> {
    let generated = model.generate_with_kv(kv, tokens, 1, &Sampling::Greedy).map_err(engine_error)?;
    generated.first().copied().ok_or_else(|| CliError::internal("the context leaves no room for a token"))
}

/// Fills new pages with `tokens` tokens; `fill` writes them to its sink.
pub fn into_pages(
    model: &Model,
    tokens: usize,
    fill: impl FnOnce(&mut kvasir_engine::PagedSink) -> CliResult,
) -> CliResult<PagedKv> {
    let mut kv = model.new_kv().map_err(engine_error)?;
    kv.reserve(tokens).map_err(CliError::internal)?;
    let mut sink = kv.sink(0).map_err(CliError::internal)?;
    fill(&mut sink)?;
    sink.finish().map_err(CliError::internal)?;
    kv.commit(tokens).map_err(CliError::internal)?;
    Ok(kv)
}
