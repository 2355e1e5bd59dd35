//! Collects the data of a load's report.

use std::time::Duration;

use kvasir_types::{Loss, TokenRange};

use super::{
    LoadError, LoadFailure,
    decode::DecodedBy,
    progress::LoadProgress,
    report::{ChunkReport, DeviceUse, LoadReport, LoadTimes},
};
use crate::{
    fetcher::{ChunkFetchState, Fetcher, PlannedChunk},
    pages::DeviceTimes,
    rest::ReadReport,
};

/// Data about a load that its fetcher and its progress do not have.
#[derive(Debug)]
pub(super) struct LoadRecorder {
    failures: Vec<LoadFailure>,
    /// Prefills of the engine outside this load's chunks.
    prefills: Vec<(TokenRange, Duration)>,
    /// `[chunk]`: largest predicted KL of the parts handed over, including the loss beneath.
    chunk_loss: Vec<Loss>,
    stale_rows: usize,
    times: LoadTimes,
    device: DeviceUse,
}

impl LoadRecorder {
    pub(super) fn new(chunks: usize) -> Self {
        Self {
            failures: Vec::new(),
            prefills: Vec::new(),
            chunk_loss: vec![Loss::NONE; chunks],
            stale_rows: 0,
            times: LoadTimes::default(),
            device: DeviceUse::default(),
        }
    }

    pub(super) fn record_failure(&mut self, chunk: usize, at: Duration, error: LoadError) {
        tracing::debug!(chunk, %error, "a part of a load failed");
        self.failures.push(LoadFailure { chunk, at, error });
    }

    pub(super) fn has_failed(&self, chunk: usize) -> bool {
        self.failures.iter().any(|failure| failure.chunk == chunk)
    }

    pub(super) fn record_prefill(&mut self, range: TokenRange, took: Duration) {
        self.prefills.push((range, took));
    }

    /// The engine computed a chunk in this time.
    pub(super) fn record_recompute(&mut self, took: Duration) {
        self.times.recompute += took;
    }

    /// A decode unit took this time.
    pub(super) fn record_decode(&mut self, took: Duration, by: DecodedBy) {
        self.times.decode += took;
        match by {
            DecodedBy::Cpu | DecodedBy::Nobody => {}
            DecodedBy::Device(memory) => {
                self.device.parts += 1;
                self.device.memory = self.device.memory.most(memory);
            }
            DecodedBy::CpuInstead(reason) => {
                tracing::debug!(reason, "a device did not decode a part of a chunk: the CPU did");
                self.device.refused_parts += 1;
                self.device.first_reason.get_or_insert(reason);
            }
            DecodedBy::CpuIsFaster(reason) => {
                self.device.slow_parts += 1;
                self.device.first_reason.get_or_insert(reason);
            }
        }
    }

    /// A device was given units at once: where its time went.
    pub(super) fn record_device_times(&mut self, times: DeviceTimes) {
        let DeviceTimes { waited, copies, kernels } = &mut self.device.times;
        // Whoever decodes says so: any values.
        *waited = waited.saturating_add(times.waited);
        *copies = copies.saturating_add(times.copies);
        *kernels = kernels.saturating_add(times.kernels);
    }

    /// Time passed while something was being read or decoded, or neither.
    pub(super) fn record_passed(&mut self, passed: Duration, reading: bool, decoding: bool) {
        match (reading, decoding) {
            (true, _) => self.times.network += passed,
            (false, true) => {}
            (false, false) => self.times.wait += passed,
        }
    }

    /// Part of a chunk was handed over.
    pub(super) fn record_loss(&mut self, chunk: usize, loss: Loss) {
        if let Some(worst) = self.chunk_loss.get_mut(chunk) {
            *worst = worst.worst(loss);
        }
    }

    /// Rows were not written because their pages belong to another request.
    pub(super) fn record_stale_rows(&mut self, rows: usize) {
        self.stale_rows += rows;
    }

    pub(super) const fn has_stale_rows(&self) -> bool {
        self.stale_rows > 0
    }

    /// The report of a load that ended after `elapsed`.
    pub(super) fn report(
        self,
        fetcher: &Fetcher,
        progress: LoadProgress,
        reads: ReadReport,
        elapsed: Duration,
    ) -> LoadReport {
        let chunks = fetcher.chunks().iter().zip(&fetcher.plan().chunks);
        let chunks: Vec<_> = chunks.map(|(chunk, plan)| chunk_report(chunk, plan)).collect();
        let loaded = chunks.iter().zip(&self.chunk_loss).filter(|(chunk, _)| chunk.level.is_some());
        let (recompute_model, decode_model) = fetcher.models();
        let mut recompute_model = recompute_model.clone();
        let mut times = self.times;
        for (range, took) in &self.prefills {
            recompute_model.observe(*range, *took);
            // Parts of chunks whose other parts were decoded.
            let share = progress.recomputed_tokens(*range) as f64 / range.len().max(1) as f64;
            times.recompute += took.mul_f64(share);
        }
        LoadReport {
            policy: fetcher.policy(),
            bytes: chunks.iter().map(|chunk| chunk.bytes).sum(),
            loss: loaded.map(|(_, loss)| *loss).fold(Loss::NONE, Loss::worst),
            chunks,
            recompute: progress.into_recompute(),
            samples: fetcher.samples().to_vec(),
            elapsed,
            times,
            gave_up: fetcher.gave_up(),
            recompute_model,
            decode_model: decode_model.clone(),
            failures: self.failures,
            reads,
            stale_rows: self.stale_rows,
            device: self.device,
        }
    }
}

fn chunk_report(chunk: &ChunkFetchState, plan: &PlannedChunk) -> ChunkReport {
    ChunkReport {
        tokens: plan.tokens,
        level: chunk.level(),
        loss: chunk.level().map_or(0.0, |level| plan.loss_at(level)),
        bytes: chunk.have_bytes,
        started: chunk.started,
        fetched: chunk.fetched,
        resolved: chunk.resolved,
        requests: chunk.requests,
    }
}

#[cfg(test)]
mod tests {
    use kvasir_types::Level;

    use super::*;
    use crate::{
        Error,
        fetcher::{
            DecodeModel, EstimatorKind, FetchPlan, FetcherConfig, FetcherEvent, Fixed, RecomputeModel,
            RequestId, TextMode,
        },
        pages::{DeviceBytes, DeviceTimes},
    };

    const MS: Duration = Duration::from_millis(1);

    /// A load of two chunks: the first is decoded, the second cannot be read.
    fn fetcher() -> Fetcher {
        let chunk =
            |start| PlannedChunk::with_default_loss(TokenRange { start, end: start + 256 }, vec![100]);
        let plan = FetchPlan {
            chunks: vec![chunk(0), chunk(256)],
            slo: 1000 * MS,
            suffix_time: Duration::ZERO,
            prior_rate: None,
            first_byte: None,
        };
        let config = FetcherConfig {
            estimator: EstimatorKind::Harmonic,
            recompute: RecomputeModel::from_seconds(0.0, 1e-2, 0.0),
            decode: DecodeModel::from_seconds(1e-6, 0.0),
            text_mode: TextMode::Overlapped,
            decodes_on_gpu: false,
        };
        let mut fetcher = Fetcher::new(plan, Box::new(Fixed::new(Level(0))), config).unwrap();
        let [first, second] = [0, 1].map(RequestId);
        let events = [
            FetcherEvent::Start,
            FetcherEvent::Bytes { request: first, bytes: 100 },
            FetcherEvent::Completed { request: first },
            FetcherEvent::Failed { request: second, permanent: true },
            FetcherEvent::Decoded { chunk: 0, took: MS },
            FetcherEvent::Recomputed { chunk: 1, took: Some(MS) },
        ];
        for (at, event) in (0..).zip(events) {
            fetcher.on(event, at * MS);
        }
        assert!(fetcher.is_done());
        fetcher
    }

    #[test]
    fn the_report_counts_what_was_loaded() {
        let mut recorder = LoadRecorder::new(2);
        // Part of the second chunk was handed over before it turned out to be unusable.
        for (chunk, kl) in [(0, 0.2), (0, 0.3), (0, 0.1), (1, 0.9)] {
            recorder.record_loss(chunk, Loss { kl, ..Loss::NONE });
        }
        recorder.record_failure(1, 3 * MS, Error::protocol("gone").into());
        assert!(recorder.has_failed(1) && !recorder.has_failed(0) && !recorder.has_stale_rows());
        let fetcher = fetcher();
        let prefill = TokenRange { start: 512, end: 1024 };
        recorder.record_prefill(prefill, 1000 * MS);
        // A span of a chunk whose other spans were decoded.
        recorder.record_prefill(TokenRange { start: 300, end: 310 }, 7 * MS);
        // The end of a chunk, and as many tokens behind the load.
        recorder.record_prefill(TokenRange { start: 496, end: 528 }, 64 * MS);
        recorder.record_recompute(MS);
        let passed = [(3, true, false), (1, true, true), (2, false, true), (4, false, false)];
        for (ms, reading, decoding) in passed {
            recorder.record_passed(ms * MS, reading, decoding);
        }
        for (scratch, pinned) in [(7, 1), (3, 2)] {
            let memory = DeviceBytes { scratch, pinned, profiles: 5 };
            recorder.record_decode(MS, DecodedBy::Device(memory));
        }
        recorder.record_decode(MS, DecodedBy::Cpu);
        recorder.record_decode(MS, DecodedBy::CpuInstead("out of memory".into()));
        recorder.record_decode(MS, DecodedBy::CpuIsFaster("it was slow".into()));
        let times = DeviceTimes { waited: 3 * MS, copies: MS, kernels: 2 * MS };
        for _ in 0..2 {
            recorder.record_device_times(times);
        }
        let mut progress = LoadProgress::new(vec![0..1, 0..1], 1, TokenRange { start: 0, end: 512 });
        progress.recompute(TokenRange { start: 256, end: 512 }, super::super::RecomputeCause::Failed);
        let report = recorder.report(&fetcher, progress, ReadReport::default(), 6 * MS);
        assert_eq!((report.policy, report.bytes, report.loaded_tokens()), ("fixed", 100, 256));
        assert_eq!(report.loss.kl, 0.3, "of what is used");
        let levels: Vec<_> = report.chunks.iter().map(|chunk| (chunk.level, chunk.resolved)).collect();
        assert_eq!(levels, [(Some(Level(0)), Some(4 * MS)), (None, Some(5 * MS))]);
        assert_eq!((report.chunks[0].fetched, report.chunks[0].requests), (Some(MS), 1));
        assert_eq!((report.failures.len(), report.elapsed), (1, 6 * MS));
        let LoadTimes { network, decode, recompute, wait } = report.times;
        assert_eq!([network, decode, recompute, wait], [4, 5, 40, 4].map(|ms| ms * MS));
        let memory = DeviceBytes { scratch: 7, pinned: 2, profiles: 5 };
        let first_reason = Some("out of memory".into());
        let times = DeviceTimes { waited: 6 * MS, copies: 2 * MS, kernels: 4 * MS };
        let used = DeviceUse { parts: 2, refused_parts: 1, slow_parts: 1, first_reason, memory, times };
        assert_eq!(report.device, used);
        let predict = |model: &RecomputeModel| model.predict(prefill);
        assert_ne!(
            predict(&report.recompute_model),
            predict(fetcher.models().0),
            "the prefill was learned from"
        );
    }
}
