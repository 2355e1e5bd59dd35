//! What goes into the core and what comes out.

use std::time::Duration;

use kvasir_types::Level;

/// One read of one object, named by the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Who else is at work: loads of one node share its link and its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Neighbours {
    /// Loads beside this one.
    pub loads: u32,
    /// Bytes of bases that they still miss: nobody refines where another has not the coarsest yet.
    pub missing_bytes: u64,
    /// Those of them that loads with an earlier deadline miss: who has slack lets them go first.
    pub urgent_bytes: u64,
}

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetcherEvent {
    /// The load begins. Sent once, first.
    Start,
    /// `bytes` more of a request arrived, in order. The first of a request marks its time to first byte.
    Bytes {
        /// The request.
        request: RequestId,
        /// How many arrived.
        bytes: u64,
    },
    /// `bytes` more of a request were here already: another load had brought them. They say nothing of the link.
    Found {
        /// The request.
        request: RequestId,
        /// How many.
        bytes: u64,
    },
    /// A request is over. Only the bytes reported by [`FetcherEvent::Bytes`] count: a short answer is a failure.
    Completed {
        /// The request.
        request: RequestId,
    },
    /// A request failed; `permanent` when asking again cannot help (a 404, a corrupt object).
    Failed {
        /// The request.
        request: RequestId,
        /// Whether asking again is pointless.
        permanent: bool,
    },
    /// A chunk was verified, decoded and handed over.
    Decoded {
        /// Index of the chunk in the plan.
        chunk: usize,
        /// How long verifying and decoding took, without waiting for its turn.
        took: Duration,
    },
    /// A chunk's bytes were no valid chunk.
    DecodeFailed {
        /// Index of the chunk in the plan.
        chunk: usize,
    },
    /// A text chunk is done, or (`took` absent) was taken over by an engine that computes it after the load.
    Recomputed {
        /// Index of the chunk in the plan.
        chunk: usize,
        /// How long computing it took.
        took: Option<Duration>,
    },
    /// Other loads share this one's link and GPU, or no longer do. Without it a load believes itself alone.
    Neighbours(Neighbours),
    /// Time passed: the answer to [`FetcherAction::WakeAt`].
    Tick,
}

/// Something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetcherAction {
    /// Read bytes `start..end` of a chunk's object.
    Fetch {
        /// Name of the request in later events.
        request: RequestId,
        /// Index of the chunk in the plan.
        chunk: usize,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// Stop a request; later events of it are ignored. Bytes that arrived stay usable.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// Verify and decode the chunk's prefix that belongs to `level`, hand it over, report
    /// [`FetcherEvent::Decoded`] or [`FetcherEvent::DecodeFailed`].
    Decode {
        /// Index of the chunk in the plan.
        chunk: usize,
        /// The level its bytes suffice for.
        level: Level,
    },
    /// Compute the chunk's KV from its tokens, as soon as every chunk before it is resolved.
    Recompute {
        /// Index of the chunk in the plan.
        chunk: usize,
    },
    /// The KV of a chunk that is being computed came over the link first: computing it may stop, and
    /// [`FetcherEvent::Recomputed`] need not be sent. Its [`FetcherAction::Decode`] follows.
    Withdraw {
        /// Index of the chunk in the plan.
        chunk: usize,
    },
    /// Send [`FetcherEvent::Tick`] at this time. Replaces an earlier wake-up.
    WakeAt(Duration),
    /// Every chunk is resolved. Sent once, last.
    Done,
}
