//! Bytes of an upload in memory, in blocks of our own: what the network hands out may be small pieces of large buffers.

use std::sync::Arc;

use bytes::Bytes;
use object_store::PutPayload;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;

/// Bytes of one permit of the memory budget.
pub(super) const PERMIT_BYTES: usize = 4096;
/// The first block; each further one is twice as long, up to the longest.
const BLOCK_BYTES_MIN: usize = 16 << 10;
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// Blocks, each with leave from the budget of all uploads.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Vec<u8>>,
    /// What the blocks became once they were to be sent.
    frozen: Vec<Bytes>,
    /// Bytes that the last block still takes.
    room: usize,
    held_bytes: usize,
    permits: Vec<OwnedSemaphorePermit>,
}

impl Blocks {
    /// Takes as much of `bytes` as there is leave for, and gives back the rest.
    pub(super) fn take<'a>(&mut self, mut bytes: &'a [u8], budget: &Arc<Semaphore>) -> &'a [u8] {
        while !bytes.is_empty() {
            if self.room == 0 && !self.grow(budget) {
                break;
            }
            let Some(last) = self.blocks.last_mut() else { break };
            let (now, later) = bytes.split_at(bytes.len().min(self.room));
            last.extend_from_slice(now);
            self.room -= now.len();
            bytes = later;
        }
        bytes
    }

    fn grow(&mut self, budget: &Arc<Semaphore>) -> bool {
        let block = self.held_bytes.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        if self.held_bytes + block > limits::SPOOL_MEMORY_BYTES {
            return false;
        }
        let Ok(permit) = Arc::clone(budget).try_acquire_many_owned((block / PERMIT_BYTES) as u32) else {
            return false;
        };
        self.permits.push(permit);
        self.blocks.push(Vec::with_capacity(block));
        self.held_bytes += block;
        self.room = block;
        true
    }

    /// The bytes, in order.
    pub(super) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.frozen.iter().map(|block| &block[..]).chain(self.blocks.iter().map(Vec::as_slice))
    }

    /// The first bytes, at least as many as the first block has.
    pub(super) fn front_mut(&mut self) -> &mut [u8] {
        self.blocks.first_mut().map_or(&mut [], Vec::as_mut_slice)
    }

    /// All of it, shared with what stays here. Nothing is taken or changed from then on.
    pub(super) fn payload(&mut self) -> PutPayload {
        self.frozen.extend(self.blocks.drain(..).map(Bytes::from));
        self.room = 0;
        self.frozen.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_by_leave_and_given_back() {
        let budget = Arc::new(Semaphore::new((3 << 20) / PERMIT_BYTES));
        let bytes: Vec<u8> = (0..4_000_000u32).map(|i| ((i * 7) >> 2) as u8).collect();
        let mut blocks = Blocks::default();
        let mut refused = 0;
        for part in bytes.chunks(70_001) {
            let rest = blocks.take(part, &budget);
            assert!(refused == 0 || rest.len() == part.len(), "what is refused once is refused to the end");
            refused += rest.len();
        }
        let taken = bytes.len() - refused;
        assert!((2 << 20..=3 << 20).contains(&taken), "{taken}");
        assert_eq!(blocks.parts().collect::<Vec<_>>().concat(), bytes[..taken]);
        blocks.front_mut()[0] ^= 1;
        let payload = blocks.payload();
        assert_eq!(blocks.parts().map(<[u8]>::len).sum::<usize>(), taken, "it can still be read");
        assert_eq!(
            (payload.content_length(), payload.iter().next().map(|part| part[0])),
            (taken, Some(bytes[0] ^ 1))
        );
        drop(blocks);
        assert_eq!(budget.available_permits(), (3 << 20) / PERMIT_BYTES);
        // A small upload takes little.
        let mut small = Blocks::default();
        assert!(small.take(&[1; 100], &budget).is_empty());
        assert_eq!(budget.available_permits(), (3 << 20) / PERMIT_BYTES - BLOCK_BYTES_MIN / PERMIT_BYTES);
    }
}
