//! Frames that were read before anybody asked for them.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::FrameKey;

/// First in, first out, and apart from the policy's book: what nobody asks for after all costs nothing else its place,
/// and what is asked for comes into the book by that use, as if it had been read then.
#[derive(Debug)]
pub(super) struct Ahead {
    capacity: u64,
    bytes: u64,
    frames: HashMap<FrameKey, Bytes>,
    order: VecDeque<FrameKey>,
}

impl Ahead {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, bytes: 0, frames: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn get(&self, key: &FrameKey) -> Option<&Bytes> {
        self.frames.get(key)
    }

    /// Takes a frame in; `false` where there is no room for one of its size.
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
            // Few and mostly near the front: they are asked for in the order they were read.
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
        let mut ahead = Ahead::new(100);
        assert!(!ahead.put(key(0), vec![0; 101].into()));
        (0..4).for_each(|frame| assert!(ahead.put(key(frame), vec![0; 40].into())));
        assert_eq!((ahead.bytes(), ahead.get(&key(1)), ahead.get(&key(2)).is_some()), (80, None, true));
        assert!(ahead.put(key(3), vec![0; 10].into()));
        assert_eq!(ahead.bytes(), 50);
        assert_eq!(ahead.take(&key(3)).map(|bytes| bytes.len()), Some(10));
        assert_eq!((ahead.take(&key(3)), ahead.bytes()), (None, 40));
        assert!(!Ahead::new(0).put(key(0), vec![0; 1].into()));
    }
}
