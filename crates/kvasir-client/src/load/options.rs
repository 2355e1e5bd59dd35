//! How a load is to be done.

use std::time::Duration;

use kvasir_types::Level;

use crate::{
    Deadline,
    fetcher::{ByteRate, DecodeModel, EstimatorKind, Fixed, Policy, Progressive, RecomputeModel},
};

/// How a load is to be done. A [`Deadline`] becomes one with [`Progressive`] and what the client has learned so far of the
/// engine's prefill, of decoding, and of the network.
#[derive(Debug)]
pub struct LoadOptions {
    /// When the first token is due.
    pub deadline: Deadline,
    /// Which levels to read when.
    pub policy: Box<dyn Policy>,
    /// Throughput estimator.
    pub estimator: EstimatorKind,
    /// Time the engine needs after the load; the predicted prefill of what is not stored when absent.
    pub suffix_time: Option<Duration>,
    /// What computing from text costs on this engine; as learned when absent.
    pub recompute: Option<RecomputeModel>,
    /// What decoding costs here; as learned when absent.
    pub decode: Option<DecodeModel>,
    /// What the link brings; as learned when absent.
    pub rate: Option<ByteRate>,
    /// Whether the session's last token is loaded, too. An engine computes it anyway, for its logits.
    pub last_token: bool,
    /// Leading tokens that the engine has in place already. A chunk that holds no others is not loaded.
    pub present: u64,
}

impl LoadOptions {
    /// Everything that is stored at one level, the last token included, however long it takes: for tools, which cannot compute.
    pub fn at_level(level: Level) -> Self {
        let policy = Box::new(Fixed::new(level).without_giving_up());
        Self { policy, last_token: true, ..Self::from(Deadline::none()) }
    }
}

impl From<Deadline> for LoadOptions {
    fn from(deadline: Deadline) -> Self {
        Self {
            deadline,
            policy: Box::new(Progressive::new()),
            estimator: EstimatorKind::Harmonic,
            suffix_time: None,
            recompute: None,
            decode: None,
            rate: None,
            last_token: false,
            present: 0,
        }
    }
}
