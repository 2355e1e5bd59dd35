//! The context of a read of the tier: the request that it serves, and the source of missing bytes.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{future::BoxFuture, stream::BoxStream};
use kvasir_eviction::{ClassId, Moment};

use crate::error::ChunkError;

use super::frames::FrameKey;

/// Reads a byte range of one object from the store: exactly its bytes, or an error.
pub type RangeReader = Arc<
    dyn Fn(
            Range<u64>,
        ) -> BoxFuture<'static, Result<BoxStream<'static, Result<Bytes, ChunkError>>, ChunkError>>
        + Send
        + Sync,
>;

/// Properties of the request that reads an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotContext {
    /// Its class.
    pub class: ClassId,
    /// When it began; `None` for now. Objects read by one request share it.
    pub at: Option<Moment>,
    /// See `Access::pace_seconds` of the eviction policies.
    pub pace_seconds: Option<f32>,
    /// Number of the object in its context.
    pub position: u32,
    /// The first frame of the previous object in its context.
    pub parent: Option<FrameKey>,
    /// Whether this replica is the first of its route, so that no other one should keep what it reads.
    pub is_first: bool,
}

impl HotContext {
    /// A read without known properties.
    pub const UNKNOWN: Self = Self {
        class: ClassId::OTHER,
        at: None,
        pace_seconds: None,
        position: 0,
        parent: None,
        is_first: false,
    };
}
