//! Entry points of the fuzz targets: parsers of what the bucket and the disk hold. Only in builds for them.

use crate::{
    changes::journal, checked_json, contexts::StoredContext, hot, index::IndexRow,
    lifecycle::gc::intents::Intent,
};

/// A batch of the journal behind its magic and before its checksum.
pub fn journal(entries: &[u8]) {
    journal::fuzz(entries);
}

/// A JSON record.
pub fn records(json: &[u8]) {
    if let Ok(stored) = checked_json::from_slice::<StoredContext>(json) {
        let again = checked_json::to_vec(&stored).expect("it was JSON");
        assert_eq!(checked_json::from_slice::<StoredContext>(&again), Ok(stored));
    }
    if let Ok(intent) = checked_json::from_slice::<Intent>(json) {
        let again = checked_json::to_vec(&intent).expect("it was JSON");
        assert!(checked_json::from_slice::<Intent>(&again).is_ok_and(|read| read.id == intent.id));
    }
}

/// A row of the index, as the journal has it.
pub fn index_row(bytes: &[u8]) {
    if let Some(row) = IndexRow::from_bytes(bytes) {
        // Bytes, because a number that is none equals nothing.
        assert_eq!(IndexRow::from_bytes(&row.to_bytes()).map(|again| again.to_bytes()), Some(row.to_bytes()));
    }
}

/// The name of a frame's file.
pub fn frame_name(name: &str) {
    hot::fuzz_name(name);
}
