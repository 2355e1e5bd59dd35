//! Pages in the memory of a device that decodes chunks itself.

use std::{ops::Range, sync::Arc, time::Duration};

use kvasir_codec::{LayerGroup, Profile, container::Head};
use kvasir_types::Level;

use super::{BlockTable, PageRef, Shard};

/// A device that decodes chunks into the pages of its [`PageStore`](super::PageStore), which returns it from
/// [`device`](super::PageStore::device). `kvasir-cuda` has one for NVIDIA GPUs.
pub trait DeviceDecoder: Send + Sync {
    /// Decodes parts of chunks into pages and returns when their rows are in place: of one table and one profile, with the
    /// same scopes, so that one launch does them all. Several threads decode at the same time, and each waits for its own
    /// parts only.
    ///
    /// Each part has its own outcome: one that is not decoded keeps no other from being. If a page of a part
    /// has another generation by now, or does not exist, nothing of that part is written. Pages must not be
    /// reassigned between that check and the last write.
    ///
    /// # Errors
    /// Why the device decoded none of them, as a sentence for the load's report. Some of the rows may have been
    /// written by then, and none is written after the return: the load decodes these parts on the CPU and
    /// writes them to the same pages.
    fn decode(&self, parts: &[DevicePart<'_>]) -> Result<DeviceDecode, String>;
}

/// What a device did with the parts that it was given together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceDecode {
    /// What became of each part, in their order. The load decodes parts that are missing here on the CPU.
    pub outcomes: Vec<PartOutcome>,
    /// The memory that it took.
    pub memory: DeviceBytes,
    /// Where its time went.
    pub times: DeviceTimes,
}

/// Time of decodes on a device. Copies and kernels are by its own clock, go on beside each other, and are upper bounds: what
/// others queue between one's own counts, too, and so do the gaps while the host has not queued the next one yet. Zeros where
/// a device does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceTimes {
    /// Before a decode began, by the host's clock: until others had made room for it, and its profile was brought there. No
    /// device is called slow for that.
    pub waited: Duration,
    /// From the first copy of what a decode reads to the last.
    pub copies: Duration,
    /// From the first kernel, once its bytes were there, to the last.
    pub kernels: Duration,
}

/// What became of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartOutcome {
    /// Its rows are in place.
    Decoded,
    /// Its pages are another request's by now, or do not exist. Nothing was written.
    Stale,
    /// Why the device did not decode it, as a sentence for the load's report. Some of its rows may have been
    /// written, and none is written any more: the load decodes it on the CPU.
    Refused(String),
}

/// Memory that decodes on a device take, in bytes. Zeros where a device does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Of the device, for what one decode reads and computes. It is freed behind the decode.
    pub scratch: u64,
    /// Of the host, pinned for copies. Everything on the device shares it.
    pub pinned: u64,
    /// Of the device, for the profiles that stay there for the pages of a rank.
    pub profiles: u64,
}

impl DeviceBytes {
    /// The larger one of each.
    pub(crate) fn most(self, other: Self) -> Self {
        Self {
            scratch: self.scratch.max(other.scratch),
            pinned: self.pinned.max(other.pinned),
            profiles: self.profiles.max(other.profiles),
        }
    }
}

/// A part of a verified chunk: some scopes of its profile at one level, for some of its tokens.
pub struct DevicePart<'a> {
    table: &'a BlockTable,
    profile: &'a Arc<Profile>,
    head: &'a Head,
    object_prefix: &'a [u8],
    scopes: Vec<usize>,
    level: Level,
    tokens: Range<usize>,
    pages: &'a [PageRef],
    first_slot: usize,
}

impl std::fmt::Debug for DevicePart<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DevicePart")
            .field("table", &self.table)
            .field("scopes", &self.scopes)
            .field("level", &self.level)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

impl<'a> DevicePart<'a> {
    /// The part that a load makes of some tokens of a chunk, which is given by its head and its bytes from the first one on; all
    /// that the part needs must have passed their checksums. Token 0 of the chunk is the table's `first_token`. `None` if the
    /// table is shorter.
    pub fn new(
        table: &'a BlockTable,
        profile: &'a Arc<Profile>,
        (head, object_prefix): (&'a Head, &'a [u8]),
        group: &LayerGroup,
        level: Level,
        first_token: usize,
        tokens: Range<usize>,
    ) -> Option<Self> {
        let (pages, first_slot) = table.pages_of(&(first_token + tokens.start..first_token + tokens.end))?;
        let scopes = group.scopes.iter().map(|reach| reach.scope).collect();
        Some(Self { table, profile, head, object_prefix, scopes, level, tokens, pages, first_slot })
    }

    /// The part of the model that the table's rank holds.
    pub const fn shard(&self) -> &'a Shard {
        self.table.shard()
    }

    /// Tokens of a page of the table.
    pub const fn page_tokens(&self) -> usize {
        self.table.page_tokens()
    }

    /// The profile that the chunk was encoded with.
    pub const fn profile(&self) -> &'a Arc<Profile> {
        self.profile
    }

    /// The object's head.
    pub const fn head(&self) -> &'a Head {
        self.head
    }

    /// The object's bytes from the first one on; all that the part needs have passed their checksums.
    pub const fn object_prefix(&self) -> &'a [u8] {
        self.object_prefix
    }

    /// Scopes of the profile, by index.
    pub fn scopes(&self) -> &[usize] {
        &self.scopes
    }

    /// The level of every scope.
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Tokens of the chunk.
    pub const fn tokens(&self) -> Range<usize> {
        self.tokens.start..self.tokens.end
    }

    /// The pages that hold these tokens, in token order.
    pub const fn pages(&self) -> &'a [PageRef] {
        self.pages
    }

    /// The slot of the first page that takes the first token.
    pub const fn first_slot(&self) -> usize {
        self.first_slot
    }
}
