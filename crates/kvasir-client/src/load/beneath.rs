//! What a session's KV was computed over.

use std::sync::{Mutex, PoisonError};

/// Worst predicted KL, in nats a token, beneath whatever the engine computes in a session. Loads note it by themselves, so that
/// what is saved over them carries it and errors cannot grow over turns unseen.
#[derive(Debug, Default)]
pub(crate) struct Beneath(Mutex<Kl>);

#[derive(Debug, Clone, Copy, Default)]
struct Kl {
    /// Of loads that are over, and of what the engine had.
    settled: f64,
    /// Of layers that were handed over by a load that has not ended: the engine may have begun on them.
    under_way: f64,
}

impl Beneath {
    fn with<T>(&self, f: impl FnOnce(&mut Kl) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Layers of this quality were handed over.
    pub(crate) fn handed_over(&self, kl: f64) {
        self.with(|this| this.under_way = this.under_way.max(kl));
    }

    /// A load has ended; of what it handed over, what stays in use has this quality.
    pub(crate) fn settle(&self, kl: f64) {
        self.with(|this| *this = Kl { settled: this.settled.max(kl), under_way: 0.0 });
    }

    /// The worst so far.
    pub(crate) fn kl(&self) -> f64 {
        self.with(|this| this.settled.max(this.under_way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_is_left_counts_as_used_and_one_that_ends_says_what_stayed() {
        let beneath = Beneath::default();
        beneath.handed_over(0.2);
        assert_eq!(beneath.kl(), 0.2);
        // The coarse part was computed instead.
        beneath.settle(0.05);
        assert_eq!(beneath.kl(), 0.05);
        beneath.settle(0.0);
        assert_eq!(beneath.kl(), 0.05, "what an earlier load brought is still there");
    }
}
