//! Why an object was removed.

/// Why an object has a tombstone; its text is the tombstone's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Removal {
    /// A request asked for it.
    Removed,
    /// Its time to live ended.
    Expired,
    /// The collector evicted it to stay within the capacity.
    Evicted,
    /// The chunk has an object that readers prefer.
    Duplicate,
    /// A longer chunk holds all of it.
    Contained,
    /// Its bytes were wrong twice.
    Corrupt,
}

impl Removal {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::Removed, Self::Expired, Self::Evicted, Self::Duplicate, Self::Contained, Self::Corrupt];

    /// As in tombstones, the journal and events.
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

    /// The reason of a text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }

    /// Whether the collector decided on it, and so lifts the tombstone of what is pinned.
    pub const fn is_the_collectors(self) -> bool {
        matches!(self, Self::Expired | Self::Evicted | Self::Duplicate | Self::Contained)
    }

    /// Who acts for this reason.
    pub const fn by(self) -> &'static str {
        match self {
            Self::Removed => "request",
            Self::Corrupt => "scrub",
            Self::Expired | Self::Evicted | Self::Duplicate | Self::Contained => "collector",
        }
    }
}
