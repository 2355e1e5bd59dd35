//! Entry points of the fuzz targets: parsers of data in the bucket and on disk. Compiled only for fuzzing and
//! tests.

use crate::{
    changes::journal, checked_json, contexts::StoredContext, hot, index::IndexRow,
    lifecycle::gc::intents::Intent,
};

/// A batch of the journal without its magic and its checksum.
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

/// A row of the index, as in the journal.
pub fn index_row(bytes: &[u8]) {
    if let Some(row) = IndexRow::from_bytes(bytes) {
        // Compare bytes, because NaN equals nothing.
        assert_eq!(IndexRow::from_bytes(&row.to_bytes()).map(|again| again.to_bytes()), Some(row.to_bytes()));
    }
}

/// The name of a frame's file.
pub fn frame_name(name: &str) {
    hot::fuzz_name(name);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds of a target, each also cut after every byte and with every bit flipped.
    fn damaged(target: &str, check: impl Fn(&[u8])) {
        let folder =
            format!("{}/../../services/kvasir-server/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let mut seeds = 0;
        for file in std::fs::read_dir(folder).expect("a corpus") {
            let seed = std::fs::read(file.expect("a seed").path()).expect("reads");
            check(&seed);
            for at in 0..seed.len() {
                check(&seed[..at]);
                for bit in 0..8 {
                    let mut flipped = seed.clone();
                    flipped[at] ^= 1 << bit;
                    check(&flipped);
                }
            }
            seeds += 1;
        }
        assert!(seeds >= 3, "{seeds} seeds of {target}");
    }

    #[test]
    fn corpora_and_what_is_damaged_hold() {
        damaged("journal", journal);
        damaged("records", records);
        damaged("records", index_row);
        damaged("keys", |data| {
            if let Ok(name) = std::str::from_utf8(data) {
                frame_name(name);
            }
        });
    }
}
