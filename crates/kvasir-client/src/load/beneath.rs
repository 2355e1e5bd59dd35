//! What a session's KV was computed over.

use std::sync::{Mutex, PoisonError};

use kvasir_types::Loss;

/// What the KV has lost that lies beneath whatever the engine computes in a session. Loads note it by themselves, so that
/// what is saved over them carries it and errors cannot grow over turns unseen.
#[derive(Debug)]
pub(crate) struct Beneath(Mutex<Losses>);

#[derive(Debug, Clone, Copy)]
struct Losses {
    /// Of loads that are over, and of what the engine had.
    settled: Loss,
    /// Of layers that were handed over by a load that has not ended: the engine may have begun on them.
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

    /// Layers that have lost this were handed over.
    pub(crate) fn handed_over(&self, loss: Loss) {
        self.with(|this| this.under_way = this.under_way.worst(loss));
    }

    /// A load has ended; of what it handed over, what stays in use has lost this.
    pub(crate) fn settle(&self, loss: Loss) {
        self.with(|this| *this = Losses { settled: this.settled.worst(loss), under_way: Loss::NONE });
    }

    /// The worst so far.
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
