//! The row that says how far this replica's repeated scrub is: `s → record`. A hint: the record has a checksum of its own, a
//! damaged one counts as none, and the index stays in use.

use super::{IndexError, database::HotIndex};

const SCRUB: &[u8] = b"s";

pub(super) fn put(index: &dyn HotIndex, record: &[u8]) -> Result<(), IndexError> {
    index.put(SCRUB, record)
}

pub(super) fn get(index: &dyn HotIndex) -> Result<Option<Vec<u8>>, IndexError> {
    index.get(SCRUB)
}
