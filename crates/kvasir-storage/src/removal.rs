//! Why an object was removed.

/// Why an object has a tombstone; its text is the tombstone's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Removal {
    /// Removed by request.
    Removed,
    /// Its time to live expired.
    Expired,
    /// The collector evicted it to stay within the capacity.
    Evicted,
    /// The chunk has an object that readers prefer.
    Duplicate,
    /// A longer chunk contains all of it.
    Contained,
    /// Its bytes were wrong in two reads.
    Corrupt,
}

impl Removal {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::Removed, Self::Expired, Self::Evicted, Self::Duplicate, Self::Contained, Self::Corrupt];

    /// The name in tombstones, the journal and events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Duplicate => "duplicate",
            Self::Contained => "contained",
            Self::Corrupt => "corrupt",
        }
    }

    /// Parses a reason.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }

    /// Whether the collector decided on it, and so lifts the tombstone of a pinned object.
    pub const fn is_the_collectors(self) -> bool {
        matches!(self, Self::Expired | Self::Evicted | Self::Duplicate | Self::Contained)
    }

    /// The actor behind this reason.
    pub const fn by(self) -> &'static str {
        match self {
            Self::Removed => "request",
            Self::Corrupt => "scrub",
            Self::Expired | Self::Evicted | Self::Duplicate | Self::Contained => "collector",
        }
    }
}
