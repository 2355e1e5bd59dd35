//! Frames that are being fetched, and the readers that wait for them.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, channel::oneshot, future::Shared};
use kvasir_store::StoreError;
use kvasir_types::Medium;

use crate::{error::ChunkError, memory::Lease};

/// The outcome of a frame's fetch: its bytes and their medium, or the error.
pub(super) type FrameResult = Result<(Bytes, Medium), Arc<ChunkError>>;

/// Receives a frame's result; cancelled if its fetch was dropped. Receivers are woken in a fixed order,
/// unlike those of a watch, which is random: simulations depend on it.
pub(super) type FrameReceiver = Shared<oneshot::Receiver<FrameResult>>;

/// One frame of a fetch: its reserved memory, and the channel to its readers.
#[derive(Debug)]
pub(super) struct PendingFrame {
    pub(super) frame: u32,
    pub(super) lease: Option<Lease>,
    pub(super) sender: oneshot::Sender<FrameResult>,
}

/// Consecutive frames of an object.
pub(super) type FrameBatch = Vec<PendingFrame>;

/// Both ends of a frame's channel.
pub(super) fn frame_channel() -> (oneshot::Sender<FrameResult>, FrameReceiver) {
    let (sender, receiver) = oneshot::channel();
    (sender, receiver.shared())
}

/// Waits for a frame's result.
pub(super) async fn received(receiver: FrameReceiver) -> FrameResult {
    let dropped =
        |_| Err(Arc::new(StoreError::own("reading an object", "the task that read it ended").into()));
    receiver.await.unwrap_or_else(dropped)
}
