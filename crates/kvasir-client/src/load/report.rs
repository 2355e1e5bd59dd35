//! The report of a load.

use std::{collections::BTreeMap, time::Duration};

use kvasir_api::LoadRecord;
use kvasir_types::{Level, Loss, TokenRange};

use super::{LoadFailure, timeline::timeline};
use crate::{
    fetcher::{ByteRate, DecodeModel, RecomputeModel},
    pages::{DeviceBytes, DeviceTimes},
    rest::ReadReport,
};

/// One chunk of a load.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkReport {
    /// Tokens of the context that it loaded, or that must be computed.
    pub tokens: TokenRange,
    /// The level at which it was decoded (spans with damaged pieces may be at a lower one, or must be
    /// computed); `None` if its tokens must be computed.
    pub level: Option<Level>,
    /// Predicted loss (logit KL, nats per token); 0 for text.
    pub loss: f64,
    /// Bytes that arrived for it.
    pub bytes: u64,
    /// First request sent, since the load began.
    pub started: Option<Duration>,
    /// Last byte arrived, since the load began.
    pub fetched: Option<Duration>,
    /// Decoded and handed over, or returned as text, since the load began.
    pub resolved: Option<Duration>,
    /// Requests sent for it.
    pub requests: u32,
}

/// Where the time of a load went. `network` and `wait` are parts of [`LoadReport::elapsed`]; in the rest of it
/// something was decoded and nothing read. `decode` and `recompute` go on beside the network, and may exceed it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadTimes {
    /// While at least one read was under way, from its request to its last byte, with the pauses before retries.
    pub network: Duration,
    /// Of decoding threads, summed over them. A thread waits for the device that decodes its part.
    pub decode: Duration,
    /// Of the engine, for tokens of the load's chunks, as it reported during the load.
    pub recompute: Duration,
    /// While nothing was being read or decoded, for instance because the engine still computed.
    pub wait: Duration,
}

/// What a device decoded, of tables whose pages are on one ([`DeviceDecoder`](crate::pages::DeviceDecoder)). A part is one
/// or more layers of some tokens of a chunk, for one rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Parts that it decoded.
    pub parts: u64,
    /// Parts that it did not decode, and the CPU did.
    pub refused_parts: u64,
    /// Parts that the device would have been given, and the CPU decoded, because it was slow before: twice in a row, without
    /// its waits, it took more than [four times](crate::limits::DEVICE_SLOW_FACTOR) as long as in earlier loads, and longer
    /// than the CPU would as far as that is measured or assumed, and the load would have been late at that pace.
    pub slow_parts: u64,
    /// Why it did not decode the first of these.
    pub first_reason: Option<String>,
    /// The most memory that it took while it decoded what this load gave it together; a load has two such
    /// decodes at a time at most. Of several devices, the most of any.
    pub memory: DeviceBytes,
    /// Where its time went, summed over what it was given at once. Each is a part of [`LoadTimes::decode`].
    pub times: DeviceTimes,
}

/// The report of a load: enough to draw its timeline and to plan the next one.
#[derive(Debug)]
pub struct LoadReport {
    /// Name of the policy.
    pub policy: &'static str,
    /// One entry per chunk of the plan.
    pub chunks: Vec<ChunkReport>,
    /// Tokens of the chunks that the engine computes: failed, too coarse, or cheaper as text. Adjacent ranges
    /// are joined.
    pub recompute: Vec<TokenRange>,
    /// Throughput samples: when, and how much.
    pub samples: Vec<(Duration, ByteRate)>,
    /// From the start to the last chunk resolved.
    pub elapsed: Duration,
    /// Where the time went.
    pub times: LoadTimes,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Whether the load was given up because computing was predicted to be faster.
    pub gave_up: bool,
    /// Failures during the load.
    pub failures: Vec<LoadFailure>,
    /// How the bytes arrived.
    pub reads: ReadReport,
    /// The loss beneath everything computed over the prefix: the largest of its chunks, including the loss
    /// beneath them.
    pub loss: Loss,
    /// Rows not written because their pages belonged to another request by then, or could not be copied to their device.
    /// If above 0, do not use any part of this load.
    pub stale_rows: usize,
    /// What a device decoded.
    pub device: DeviceUse,
    /// Prefill times as fitted so far, for the next load.
    pub recompute_model: RecomputeModel,
    /// Decode times as this load fitted them, or assumed them if it decoded nothing.
    pub decode_model: DecodeModel,
}

impl LoadReport {
    /// Tokens that were loaded; none if there are [stale rows](Self::stale_rows).
    pub fn loaded_tokens(&self) -> u64 {
        if self.stale_rows > 0 {
            return 0;
        }
        let chunks: u64 = self.chunks.iter().map(|c| c.tokens.len()).sum();
        chunks - self.recompute.iter().map(|range| range.len()).sum::<u64>()
    }

    /// GPU-seconds saved by loading, as predicted by the engine's own model; none if there are
    /// [stale rows](Self::stale_rows).
    pub fn saved_gpu_seconds(&self) -> f64 {
        if self.stale_rows > 0 {
            return 0.0;
        }
        let (Some(first), Some(last)) = (self.chunks.first(), self.chunks.last()) else { return 0.0 };
        let all = TokenRange { start: first.tokens.start, end: last.tokens.end };
        let computed: f64 = self.recompute.iter().map(|range| self.recompute_model.gpu_seconds(*range)).sum();
        (self.recompute_model.gpu_seconds(all) - computed).max(0.0)
    }

    /// The record of this load for the service; `slo` is the time it was allowed.
    pub(super) fn record(&self, slo: Duration) -> LoadRecord {
        let (mut bytes_by_level, mut tokens_by_level) = (BTreeMap::new(), BTreeMap::new());
        for chunk in &self.chunks {
            if let Some(level) = chunk.level {
                *bytes_by_level.entry(level).or_default() += chunk.bytes;
                *tokens_by_level.entry(level).or_default() += chunk.tokens.len();
            }
        }
        if self.stale_rows > 0 {
            tokens_by_level.clear();
        }
        LoadRecord {
            slo_ms: slo.as_millis() as u64,
            elapsed_ms: self.elapsed.as_millis() as u64,
            loaded_tokens: self.loaded_tokens(),
            recomputed_tokens: self.recompute.iter().map(|range| range.len()).sum(),
            bytes_by_level,
            direct_bytes: self.reads.direct_bytes,
            tokens_by_level,
            saved_gpu_ms: (self.saved_gpu_seconds() * 1e3) as u64,
            timeline: Some(timeline(self)),
        }
    }

    /// Expected throughput of the next load: the harmonic mean of the last samples.
    pub fn rate(&self) -> Option<ByteRate> {
        let last = self.samples.iter().rev().take(crate::fetcher::WINDOW_SAMPLES);
        let (count, inverse) =
            last.fold((0.0, 0.0), |(n, sum), (_, r)| (n + 1.0, sum + r.bytes_per_second().recip()));
        ByteRate::new(count / inverse)
    }
}
