//! Small typed quantities.

use std::{fmt, ops::Range};

use serde::{Deserialize, Serialize};

/// A quality level; 0 is the coarsest, and each further one divides the quantiser step by three.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Level(pub u8);

impl Level {
    /// The coarsest level.
    pub const BASE: Self = Self(0);

    /// As an index into per-level tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which of a layer's two cached tensors. For MLA layers `K` is the latent and `V` the rotary key part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Plane {
    /// Keys (MLA: the latent).
    K,
    /// Values (MLA: the shared rotary key).
    V,
}

impl Plane {
    /// Both planes, in storage order.
    pub const ALL: [Self; 2] = [Self::K, Self::V];
}

/// Where bytes are located, in the terms of prefix-aware routers.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Medium {
    /// GPU memory.
    Gpu,
    /// A replica's RAM.
    Cpu,
    /// A replica's disk.
    Disk,
    /// The object store.
    Object,
}

/// A half-open range of token positions.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenRange {
    /// First token.
    pub start: u64,
    /// One past the last token; never below `start` in a range that this workspace builds.
    pub end: u64,
}

impl TokenRange {
    /// Number of tokens.
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range holds no token.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl From<Range<u64>> for TokenRange {
    fn from(range: Range<u64>) -> Self {
        Self { start: range.start, end: range.end }
    }
}
