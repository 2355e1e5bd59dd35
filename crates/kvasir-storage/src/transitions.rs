//! The steps that change durable state, after which a crash may leave work half done. Tests inject a crash
//! after each of them.

use std::fmt;

/// A named state transition, reported once it has taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Transition {
    /// A whole body was verified; nothing of it is visible.
    UploadVerified,
    /// A complete object is in the store, unknown to index and journal.
    ObjectWritten,
    /// A multipart upload was started; nothing is visible.
    PartsBegun,
    /// A part was stored; nothing is visible.
    PartWritten,
    /// All parts were combined into one object.
    PartsCompleted,
    /// The parts of an aborted upload are gone.
    PartsAborted,
    /// A part that a client stored for its own upload is in the store; nothing is visible.
    PartStaged,
    /// Such a part is gone, because its upload was completed or aborted.
    StagedPartDeleted,
    /// The index knows an object that the store has.
    IndexWritten,
    /// The marker of an object to be listed is in the store.
    KeyListed,
    /// A journal batch is in the store.
    JournalAppended,
    /// Another replica's batch was applied here.
    JournalApplied,
    /// A model's spec is in the store.
    SpecWritten,
    /// A profile is in the store.
    ProfileWritten,
    /// A first writer has proposed a tenant's salt, on a store without conditional creates.
    SaltProposed,
    /// A tenant's salt is in the store.
    SaltWritten,
    /// An object has a tombstone: hidden, not yet deleted.
    TombstoneWritten,
    /// A collector has recorded which chunks it is about to delete; none has a tombstone.
    IntentWritten,
    /// A collector leads an epoch.
    EpochBegun,
    /// An object's bytes are gone; its tombstone is not.
    ObjectDeleted,
    /// The time at which an object's bytes were deleted is recorded.
    GoneNoted,
    /// A tombstone is gone: its name is free.
    TombstoneDeleted,
    /// A journal batch is gone.
    BatchDeleted,
}

impl Transition {
    /// All transitions.
    pub const ALL: [Self; 23] = [
        Self::UploadVerified,
        Self::ObjectWritten,
        Self::PartsBegun,
        Self::PartWritten,
        Self::PartsCompleted,
        Self::PartsAborted,
        Self::PartStaged,
        Self::StagedPartDeleted,
        Self::IndexWritten,
        Self::KeyListed,
        Self::JournalAppended,
        Self::JournalApplied,
        Self::SpecWritten,
        Self::ProfileWritten,
        Self::SaltProposed,
        Self::SaltWritten,
        Self::TombstoneWritten,
        Self::IntentWritten,
        Self::EpochBegun,
        Self::ObjectDeleted,
        Self::GoneNoted,
        Self::TombstoneDeleted,
        Self::BatchDeleted,
    ];
}

/// Observes the transitions, at each of which tests simulate a crash. Called by every request: must be cheap.
pub trait CrashPointObserver: fmt::Debug + Send + Sync + 'static {
    /// A transition has taken effect.
    fn reached(&self, transition: Transition);
}

/// Observes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCrashPointObserver;

impl CrashPointObserver for NoCrashPointObserver {
    fn reached(&self, _: Transition) {}
}
