//! Prefetched frames that no reader has used yet.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::FrameKey;

/// First in, first out, and outside the eviction policy: an unused prefetch evicts nothing; a used one enters the policy
/// as if it had been read at that moment.
#[derive(Debug)]
pub(super) struct PrefetchBuffer {
    capacity: u64,
    bytes: u64,
    frames: HashMap<FrameKey, Bytes>,
    order: VecDeque<FrameKey>,
}

impl PrefetchBuffer {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, bytes: 0, frames: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn get(&self, key: &FrameKey) -> Option<&Bytes> {
        self.frames.get(key)
    }

    /// Adds a frame; `false` if there is no space for it.
    pub(super) fn put(&mut self, key: FrameKey, content: Bytes) -> bool {
        let bytes = content.len() as u64;
        if bytes > self.capacity {
            return false;
        }
        self.take(&key);
        while self.bytes + bytes > self.capacity {
            let Some(oldest) = self.order.front().copied() else { break };
            self.take(&oldest);
        }
        self.bytes += bytes;
        self.order.push_back(key);
        self.frames.insert(key, content);
        true
    }

    pub(super) fn take(&mut self, key: &FrameKey) -> Option<Bytes> {
        let content = self.frames.remove(key)?;
        self.bytes -= content.len() as u64;
        if self.order.front() == Some(key) {
            self.order.pop_front();
        } else if let Some(at) = self.order.iter().position(|other| other == key) {
            // Few, and mostly near the front: they are requested in the order in which they were read.
            self.order.remove(at);
        }
        Some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_bytes_are_exact() {
        let key = |frame| FrameKey { object: [1; 16], frame };
        let mut buffer = PrefetchBuffer::new(100);
        assert!(!buffer.put(key(0), vec![0; 101].into()));
        (0..4).for_each(|frame| assert!(buffer.put(key(frame), vec![0; 40].into())));
        assert_eq!((buffer.bytes(), buffer.get(&key(1)), buffer.get(&key(2)).is_some()), (80, None, true));
        assert!(buffer.put(key(3), vec![0; 10].into()));
        assert_eq!(buffer.bytes(), 50);
        assert_eq!(buffer.take(&key(3)).map(|bytes| bytes.len()), Some(10));
        assert_eq!((buffer.take(&key(3)), buffer.bytes()), (None, 40));
        assert!(!PrefetchBuffer::new(0).put(key(0), vec![0; 1].into()));
    }
}
