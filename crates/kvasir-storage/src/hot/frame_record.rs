//! What a medium records of a frame that it holds.

use bytes::Bytes;
use kvasir_eviction::{Access, Moment, TenantIndex};

use crate::limits;

use super::{context::HotContext, disk::FrameFile, frames::FrameKey};

/// A frame in memory.
#[derive(Debug, Clone)]
pub(super) struct MemoryFrame {
    pub(super) bytes: Bytes,
    pub(super) record: FrameRecord,
}

/// A medium's record of a frame, without the eviction policy's own state.
#[derive(Debug, Clone)]
pub(super) struct FrameRecord {
    pub(super) file: FrameFile,
    pub(super) tenant: TenantIndex,
    pub(super) access: Access<FrameKey>,
    pub(super) since: Moment,
    /// Whether this replica was the first of the route of its last use.
    pub(super) is_first: bool,
}

/// The properties of a frame's use, for a policy. A miss costs a read of the store, which is the same for every byte of
/// a base. A level refines the steps of the previous one by three, so its bytes remove a ninth of the error:
/// they are worth [`limits::HOT_LEVEL_WORTH`] of the bytes before.
pub(super) fn access(file: &FrameFile, context: HotContext, now: Moment) -> Access<FrameKey> {
    let FrameKey { object, frame } = file.key;
    let parent = match frame.checked_sub(1) {
        Some(before) => Some(FrameKey { object, frame: before }),
        None => context.parent,
    };
    let of_chunk = context.position.saturating_mul(limits::HOT_FRAMES_ORDERED);
    let offset = of_chunk.saturating_add(frame.min(limits::HOT_FRAMES_ORDERED - 1));
    let worth = limits::HOT_LEVEL_WORTH.powi(i32::from(file.level));
    Access::new(context.at.unwrap_or(now), context.class)
        .bytes(u64::from(file.bytes))
        .at(offset, parent)
        .paced(context.pace_seconds)
        .worth(worth * file.bytes as f32)
}
