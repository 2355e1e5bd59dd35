//! The loss of the KV that a session's KV was computed over.

use std::sync::{Mutex, PoisonError};

use kvasir_types::Loss;

/// The loss of the KV beneath everything that the engine computes in a session. Loads record it themselves,
/// so that saves carry it and errors cannot accumulate unseen over turns.
#[derive(Debug)]
pub(crate) struct Beneath(Mutex<Losses>);

#[derive(Debug, Clone, Copy)]
struct Losses {
    /// Of loads that have ended, and of KV that the engine already had.
    settled: Loss,
    /// Of layers that an unfinished load handed over: the engine may have started on them.
    under_way: Loss,
}

impl Default for Beneath {
    fn default() -> Self {
        Self(Mutex::new(Losses { settled: Loss::NONE, under_way: Loss::NONE }))
    }
}

impl Beneath {
    fn with<T>(&self, f: impl FnOnce(&mut Losses) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Layers with this loss were handed over.
    pub(crate) fn handed_over(&self, loss: Loss) {
        self.with(|this| this.under_way = this.under_way.worst(loss));
    }

    /// A load has ended; the part of it that stays in use has this loss.
    pub(crate) fn settle(&self, loss: Loss) {
        self.with(|this| *this = Losses { settled: this.settled.worst(loss), under_way: Loss::NONE });
    }

    /// The largest loss so far.
    pub(crate) fn loss(&self) -> Loss {
        self.with(|this| this.settled.worst(this.under_way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_is_left_counts_as_used_and_one_that_ends_says_what_stayed() {
        let beneath = Beneath::default();
        let kl = |kl| Loss { kl, ..Loss::NONE };
        beneath.handed_over(kl(0.2));
        assert_eq!(beneath.loss().kl, 0.2);
        // The coarse part was computed instead.
        beneath.settle(kl(0.05));
        assert_eq!(beneath.loss().kl, 0.05);
        beneath.settle(Loss::NONE);
        assert_eq!(beneath.loss().kl, 0.05, "what an earlier load brought is still there");
    }
}
