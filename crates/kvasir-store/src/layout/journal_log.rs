//! The logs of the journal.

/// The logs of the journal. Removals have a separate one, because they are kept longer and are read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JournalLog {
    /// Removals.
    Removed,
    /// Stored chunks.
    Stored,
    /// Tenants' usage of the store.
    Counted,
}

impl JournalLog {
    /// All logs, in the order of reading.
    pub const ALL: [Self; 3] = [Self::Removed, Self::Stored, Self::Counted];

    /// The name in keys.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Stored => "stored",
            Self::Counted => "counted",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|log| log.as_str() == text)
    }
}
