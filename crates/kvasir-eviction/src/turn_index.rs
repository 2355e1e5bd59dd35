//! Determines which turn of a conversation a request is, if the caller does not say.

use super::{
    EntryKey, Moment, limits,
    table::{List, Table},
};

/// Recognises a follow-up by the end of the request that it continues.
///
/// A request's last two keys are remembered with its turn: the last block is often partial or padded, and then
/// its hash changes when the conversation goes on. A later request that contains one of them, as deep as
/// possible, is the turn after. At most [`limits::TURN_ENDS_MAX`] ends are kept, the least recently used go.
#[derive(Debug)]
pub struct TurnInference<K> {
    ends: Table<K, (u32, Moment)>,
    queue: List,
}

impl<K: EntryKey> Default for TurnInference<K> {
    fn default() -> Self {
        Self { ends: Table::default(), queue: List::EMPTY }
    }
}

impl<K: EntryKey> TurnInference<K> {
    /// The turn, from 1, of a request with these keys in prefix order, and the seconds since the previous
    /// turn; remembers the end of the request.
    pub fn turn_of(&mut self, keys: &[K], now: Moment) -> (u32, Option<f32>) {
        let before = keys.iter().rev().find_map(|key| self.ends.find(key)).map(|slot| *self.ends.meta(slot));
        let turn = before.map_or(1, |(turn, _)| turn.saturating_add(1));
        let pace_seconds = before.map(|(_, last)| now.seconds_since(last) as f32);
        for key in keys.iter().rev().take(2) {
            if let Some(slot) = self.ends.find(key) {
                *self.ends.meta_mut(slot) = (turn, now);
                self.queue.move_to_back(&mut self.ends.slab, slot);
            } else {
                let slot = self.ends.add(*key, 0, (turn, now));
                self.queue.push_back(&mut self.ends.slab, slot);
            }
        }
        while self.ends.len() > limits::TURN_ENDS_MAX {
            let Some(slot) = self.queue.front() else { break };
            self.queue.unlink(&mut self.ends.slab, slot);
            self.ends.drop_slot(slot);
        }
        (turn, pace_seconds)
    }
}
