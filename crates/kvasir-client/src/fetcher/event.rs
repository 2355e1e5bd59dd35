//! The core's inputs and outputs.

use std::time::Duration;

use kvasir_types::Level;

/// One read of one object, named by the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Other active loads: loads of one node share its link and its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Neighbours {
    /// Number of other loads.
    pub loads: u32,
    /// Bytes of bases that they still lack: no load refines while another lacks a base.
    pub missing_bytes: u64,
    /// Those bytes that belong to loads with an earlier deadline: a load with slack lets them go first.
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
        /// Number of bytes that arrived.
        bytes: u64,
    },
    /// `bytes` more of a request were already here, brought by another load. They are no evidence about the
    /// link.
    Found {
        /// The request.
        request: RequestId,
        /// Number of bytes.
        bytes: u64,
    },
    /// A request ended. Only the bytes reported by [`FetcherEvent::Bytes`] count: a short response is a
    /// failure.
    Completed {
        /// The request.
        request: RequestId,
    },
    /// A request failed; `permanent` if a retry cannot help (a 404, a corrupt object).
    Failed {
        /// The request.
        request: RequestId,
        /// Whether a retry is pointless.
        permanent: bool,
    },
    /// A chunk was verified, decoded and handed over.
    Decoded {
        /// Index of the chunk in the plan.
        chunk: usize,
        /// Time to verify and decode, without the time in the queue.
        took: Duration,
    },
    /// A chunk's bytes did not form a valid chunk.
    DecodeFailed {
        /// Index of the chunk in the plan.
        chunk: usize,
    },
    /// A text chunk was computed, or (`took` absent) taken over by an engine that computes it after the load.
    Recomputed {
        /// Index of the chunk in the plan.
        chunk: usize,
        /// Time to compute it.
        took: Option<Duration>,
    },
    /// Other loads share this one's link and GPU, or no longer do. Without this event a load assumes that it
    /// is alone.
    Neighbours(Neighbours),
    /// Time passed: the answer to [`FetcherAction::WakeAt`].
    Tick,
}

/// An instruction to the shell.
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
    /// Stop a request; its later events are ignored. Bytes that arrived remain usable.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// Verify and decode the chunk's prefix for `level`, hand it over, and report [`FetcherEvent::Decoded`]
    /// or [`FetcherEvent::DecodeFailed`].
    Decode {
        /// Index of the chunk in the plan.
        chunk: usize,
        /// The level that its bytes suffice for.
        level: Level,
    },
    /// Compute the chunk's KV from its tokens, as soon as every chunk before it is resolved.
    Recompute {
        /// Index of the chunk in the plan.
        chunk: usize,
    },
    /// The link delivered the KV of a chunk that is being computed: computing it may stop, and
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
