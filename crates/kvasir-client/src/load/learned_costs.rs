//! Cost models that loads fit for later loads: the engine's prefill times, this node's decode times, the
//! link's throughput.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use kvasir_types::TokenRange;

use super::LoadReport;
use crate::fetcher::{ByteRate, DecodeModel, RecomputeModel};

/// Decode times before the first load, assumed for any model: 5 µs a token and 10 ns a byte. Also for a device, which nobody has
/// measured by then.
const DECODE_UNMEASURED: DecodeModel = DecodeModel::from_seconds(5e-6, 1e-8);

/// The cost models of a client, shared by its clones.
#[derive(Debug)]
pub(crate) struct LearnedCosts(Mutex<CostModels>);

/// Cost models as fitted so far.
#[derive(Debug, Clone)]
pub struct CostModels {
    /// Cost of computing from text on this engine.
    pub recompute: RecomputeModel,
    /// Cost of decoding on this node's CPU.
    pub decode: DecodeModel,
    /// Cost of decoding into pages on a device, by the device and, where it refuses, by the CPU. Until the first such load it
    /// is what [`decode`](Self::decode) is before the first load: 5 µs a token and 10 ns a byte.
    pub device_decode: DecodeModel,
    /// Throughput of the last load; `None` before the first.
    pub rate: Option<ByteRate>,
}

impl LearnedCosts {
    pub(crate) fn new(recompute: RecomputeModel) -> Self {
        let (decode, device_decode) = (DECODE_UNMEASURED, DECODE_UNMEASURED);
        Self(Mutex::new(CostModels { recompute, decode, device_decode, rate: None }))
    }

    fn with<T>(&self, f: impl FnOnce(&mut CostModels) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn models(&self) -> CostModels {
        self.with(|models| models.clone())
    }

    /// Takes over the decode times that a load has fitted, into pages `on_device` or not, and its throughput. Of two
    /// concurrent loads, the one that ends later counts.
    pub(crate) fn learn(&self, report: &LoadReport, on_device: bool) {
        self.with(|models| {
            let decode = if on_device { &mut models.device_decode } else { &mut models.decode };
            *decode = report.decode_model.clone();
            models.rate = report.rate().or(models.rate);
        });
    }

    /// Learns from one prefill at once: a load that began before it does not know it, and must not undo it.
    pub(crate) fn observe_prefill(&self, range: TokenRange, took: Duration) {
        self.with(|models| models.recompute.observe(range, took));
    }
}
