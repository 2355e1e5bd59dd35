//! Bounds the decodes that run at the same time, and with them the memory that they take of the device.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::limits::DECODES_MAX;

/// [`DECODES_MAX`] slots.
#[derive(Debug, Default)]
pub(crate) struct DecodeSlots {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// A slot that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct DecodeSlot<'a>(&'a DecodeSlots);

impl DecodeSlots {
    /// Waits for a slot and takes it.
    pub(crate) fn take(&self) -> DecodeSlot<'_> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut usize| *taken >= DECODES_MAX;
        let mut taken = self.freed.wait_while(taken, is_full).unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        DecodeSlot(self)
    }
}

impl Drop for DecodeSlot<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn a_decode_too_many_waits_for_another_to_end() {
        let slots = DecodeSlots::default();
        let mut taken: Vec<_> = (0..DECODES_MAX).map(|_| slots.take()).collect();
        let (begun, has_begun) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _slot = slots.take();
                begun.send(()).expect("is awaited");
            });
            assert!(has_begun.recv_timeout(Duration::from_millis(50)).is_err(), "there was no slot");
            drop(taken.pop());
            has_begun.recv_timeout(Duration::from_secs(20)).expect("there is one");
        });
    }
}
