//! Bytes of an upload in memory, copied into our own blocks: the network may return small pieces of large
//! buffers.

use std::sync::Arc;

use bytes::Bytes;
use object_store::PutPayload;

use crate::{
    limits,
    memory::{MemoryBudget, Region},
};

/// The first block; each further one is twice as long, up to the maximum.
const BLOCK_BYTES_MIN: usize = 16 << 10;
/// The longest block.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// Blocks, charged to the budget of all uploads.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    /// The blocks after they were frozen for sending.
    frozen: Vec<Bytes>,
    held_bytes: usize,
}

#[derive(Debug)]
struct Block {
    space: Region,
    filled: usize,
}

impl Block {
    fn bytes(&self) -> &[u8] {
        &self.space[..self.filled]
    }
}

impl Blocks {
    /// Takes as much of `bytes` as memory allows, and returns the rest.
    pub(super) fn take<'a>(
        &mut self,
        mut bytes: &'a [u8],
        memory: &Arc<MemoryBudget>,
        left: u64,
    ) -> &'a [u8] {
        while !bytes.is_empty() {
            let free = self.blocks.last_mut().map_or(0, |last| last.space.len() - last.filled);
            if free == 0 {
                if !self.grow(memory, left) {
                    break;
                }
                continue;
            }
            let Some(last) = self.blocks.last_mut() else { break };
            let (now, later) = bytes.split_at(bytes.len().min(free));
            let at = last.filled;
            last.space[at..at + now.len()].copy_from_slice(now);
            last.filled += now.len();
            bytes = later;
        }
        bytes
    }

    fn grow(&mut self, memory: &Arc<MemoryBudget>, left: u64) -> bool {
        let bytes = self.held_bytes.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        if self.held_bytes + bytes > limits::SPOOL_MEMORY_BYTES {
            return false;
        }
        let Some(lease) = memory.lease_leaving(bytes as u64, left) else { return false };
        let space = Region::new(bytes, Some(lease));
        self.blocks.push(Block { space, filled: 0 });
        self.held_bytes += bytes;
        true
    }

    /// The bytes, in order.
    pub(super) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.frozen.iter().map(|block| &block[..]).chain(self.blocks.iter().map(Block::bytes))
    }

    /// Overwrites the first bytes with `prefix`, which must fit into the first block. Payloads already handed
    /// out are unchanged.
    pub(super) fn overwrite_prefix(&mut self, prefix: &[u8]) {
        if let Some(sent) = self.frozen.first_mut() {
            let rest = sent.split_off(prefix.len().min(sent.len()));
            *sent = Bytes::copy_from_slice(prefix);
            if !rest.is_empty() {
                self.frozen.insert(1, rest);
            }
        } else if let Some(first) = self.blocks.first_mut() {
            let bytes = prefix.len().min(first.filled);
            first.space[..bytes].copy_from_slice(&prefix[..bytes]);
        }
    }

    /// The whole content, shared with this value. Nothing may be added afterwards.
    pub(super) fn payload(&mut self) -> PutPayload {
        self.frozen.extend(self.blocks.drain(..).map(|block| block.space.freeze(block.filled)));
        self.frozen.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_by_leave_and_given_back() {
        let budget = MemoryBudget::new(3 << 20);
        let bytes: Vec<u8> = (0..4_000_000u32).map(|i| ((i * 7) >> 2) as u8).collect();
        let mut blocks = Blocks::default();
        let mut refused = 0;
        for part in bytes.chunks(70_001) {
            let rest = blocks.take(part, &budget, 0);
            assert!(refused == 0 || rest.len() == part.len(), "what is refused once is refused to the end");
            refused += rest.len();
        }
        let taken = bytes.len() - refused;
        assert!((2 << 20..=3 << 20).contains(&taken), "{taken}");
        assert_eq!(blocks.parts().collect::<Vec<_>>().concat(), bytes[..taken]);
        blocks.overwrite_prefix(&[bytes[0] ^ 1]);
        let payload = blocks.payload();
        assert_eq!(blocks.parts().map(<[u8]>::len).sum::<usize>(), taken, "it can still be read");
        assert_eq!(
            (payload.content_length(), payload.iter().next().map(|part| part[0])),
            (taken, Some(bytes[0] ^ 1))
        );
        for other in [2, 3] {
            blocks.overwrite_prefix(&[bytes[0] ^ other, bytes[1]]);
            let again = blocks.parts().collect::<Vec<_>>().concat();
            assert_eq!((again[0], &again[1..]), (bytes[0] ^ other, &bytes[1..taken]));
            assert_eq!(payload.iter().next().map(|part| part[0]), Some(bytes[0] ^ 1), "what is sent stays");
        }
        drop(blocks);
        assert!(budget.used() >= 2 << 20, "the store has it yet");
        drop(payload);
        assert_eq!(budget.used(), 0);
        // A small upload uses little memory, and some may have to stay free.
        let mut small = Blocks::default();
        assert!(small.take(&[1; 100], &budget, 0).is_empty());
        assert_eq!(budget.used(), BLOCK_BYTES_MIN as u64);
        assert_eq!(Blocks::default().take(&[1; 100], &budget, 3 << 20).len(), 100);
    }
}
