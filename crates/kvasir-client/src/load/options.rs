//! Options of a load.

use std::time::Duration;

use kvasir_types::{Level, Quality};

use crate::{
    Deadline,
    fetcher::{ByteRate, DecodeModel, EstimatorKind, Fixed, Policy, Progressive, RecomputeModel},
};

/// Options of a load. A [`Deadline`] converts into options with [`Progressive`] and the client's fitted costs
/// of the engine's prefill, of decoding, and of the network.
#[derive(Debug)]
pub struct LoadOptions {
    /// When the first token is due.
    pub deadline: Deadline,
    /// A quality below the connection's ([`Builder::quality`](crate::Builder::quality)) that this load may fall to where
    /// the deadline leaves no time for more. Chunks of which no level reaches the connection's quality are computed
    /// regardless. Default: none.
    pub soft_floor: Option<Quality>,
    /// Decides which levels to read when.
    pub policy: Box<dyn Policy>,
    /// Throughput estimator.
    pub estimator: EstimatorKind,
    /// Time the engine needs after the load. Default: the predicted prefill of the tokens that are not
    /// stored.
    pub suffix_time: Option<Duration>,
    /// Cost of computing from text on this engine. Default: as fitted.
    pub recompute: Option<RecomputeModel>,
    /// Cost of decoding on this node. Default: as fitted; before the first load that decodes, as assumed from the model
    /// and the profiles of the load's chunks. A load that is given this or a rate never assumes less.
    pub decode: Option<DecodeModel>,
    /// Throughput of the link. Default: as fitted.
    pub rate: Option<ByteRate>,
    /// Whether to load the session's last token too. An engine computes it anyway, for its logits.
    pub last_token: bool,
    /// Leading tokens that the engine already has in place. A chunk with no other tokens is not loaded.
    pub present: u64,
}

impl LoadOptions {
    /// All stored tokens at one level, including the last token, without a deadline: for tools, which cannot
    /// compute.
    pub fn at_level(level: Level) -> Self {
        let policy = Box::new(Fixed::new(level).without_giving_up());
        Self { policy, last_token: true, ..Self::from(Deadline::none()) }
    }
}

impl From<Deadline> for LoadOptions {
    fn from(deadline: Deadline) -> Self {
        Self {
            deadline,
            soft_floor: None,
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
