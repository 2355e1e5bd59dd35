//! The faults of a request.

use std::time::Duration;

/// Ways to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// Refused before anything happened: 5xx, a reset connection.
    Before,
    /// 503 SlowDown.
    SlowDown,
    /// It took effect, and the answer was lost.
    After,
    /// No answer arrives, and nothing happens.
    Silence,
    /// The answer is lost, and the request takes effect much later, as if it waited in a queue.
    Zombie,
    /// It takes effect immediately, and is answered after all later requests.
    Late,
    /// The body ends early as if it were whole.
    Short,
    /// The body breaks off with an error.
    Reset,
    /// The body continues after its end.
    Long,
    /// The body arrives in small pieces with pauses.
    Trickle,
    /// A byte is flipped.
    Flip,
    /// Another range of the same object.
    OtherRange,
    /// Another piece of the same object, valid in its own place.
    OtherSection,
    /// The same range of another object.
    OtherObject,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Before,
        Self::SlowDown,
        Self::After,
        Self::Silence,
        Self::Zombie,
        Self::Late,
        Self::Short,
        Self::Reset,
        Self::Long,
        Self::Trickle,
        Self::Flip,
        Self::OtherRange,
        Self::OtherSection,
        Self::OtherObject,
    ];
    /// Faults of requests that only read.
    pub(super) const ASKING: [Self; 4] = [Self::Before, Self::SlowDown, Self::Silence, Self::Late];
    /// Those of requests that change something.
    pub(super) const CHANGING: [Self; 6] =
        [Self::Before, Self::SlowDown, Self::After, Self::Silence, Self::Zombie, Self::Late];
    /// Those of reads. Half of them are about the body.
    pub(super) const READING: [Self; 12] = [
        Self::Before,
        Self::SlowDown,
        Self::Silence,
        Self::Late,
        Self::Short,
        Self::Reset,
        Self::Long,
        Self::Trickle,
        Self::Flip,
        Self::OtherRange,
        Self::OtherSection,
        Self::OtherObject,
    ];

    /// Whether wrong bytes are handed out as right ones.
    pub(super) fn corrupts(self) -> bool {
        matches!(
            self,
            Self::Short | Self::Long | Self::Flip | Self::OtherRange | Self::OtherSection | Self::OtherObject
        )
    }

    /// Whether the bytes are valid, in another place.
    pub(super) fn misdirects(self) -> bool {
        matches!(self, Self::OtherRange | Self::OtherSection | Self::OtherObject)
    }
}

/// Longest time after which a [`Fault::Zombie`] takes effect.
pub const ZOMBIE_MAX: Duration = Duration::from_secs(40);

/// The state of the whole store for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    /// Single requests go wrong.
    Fair,
    /// Every request fails.
    Away,
    /// Every write fails: the disk is full.
    Full,
    /// Every second request is told to slow down.
    Busy,
}
