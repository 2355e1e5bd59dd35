//! JSON records with an integrity check: an object whose last field is the CRC32C of the others.
//!
//! A bit flipped by the store must not move a pin to another chunk. Earlier versions ignore the field; their
//! own records lack it and are accepted.

use serde::{Serialize, de::DeserializeOwned};

/// Text between the other fields and the eight hexadecimal digits.
const FIELD: &[u8] = b",\"crc32c\":\"";
/// Text after the digits.
const END: &[u8] = b"\"}";

/// The record of a struct with at least one field.
pub(crate) fn to_vec(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut json = serde_json::to_vec(value)?;
    let checksum = format!("{:08x}", crc32c::crc32c(&json));
    json.pop();
    json.extend([FIELD, checksum.as_bytes(), END].concat());
    Ok(json)
}

/// Reads a record.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn from_slice<T: DeserializeOwned>(record: &[u8]) -> Result<T, String> {
    let cut = record.len().checked_sub(FIELD.len() + 8 + END.len()).map(|at| record.split_at(at));
    if let Some((fields, end)) = cut.filter(|(_, end)| end.starts_with(FIELD)) {
        let checksum = crc32c::crc32c_append(crc32c::crc32c(fields), b"}");
        if end[FIELD.len()..].get(..8) != Some(format!("{checksum:08x}").as_bytes()) {
            return Err("its checksum does not match".to_owned());
        }
    }
    serde_json::from_slice(record).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Record {
        name: String,
        count: u32,
    }

    #[test]
    fn a_wrong_bit_never_changes_what_a_record_says() {
        let record = Record { name: "0edc182a".to_owned(), count: 7 };
        let json = to_vec(&record).expect("serialises");
        assert_eq!(from_slice::<Record>(&json).expect("is whole"), record);
        for at in 0..json.len() * 8 {
            let mut wrong = json.clone();
            wrong[at / 8] ^= 1 << (at % 8);
            let read = from_slice::<Record>(&wrong);
            assert!(
                read.as_ref().is_err() || read == Ok(Record { name: "0edc182a".to_owned(), count: 7 }),
                "bit {at}: {read:?}"
            );
        }
        assert_eq!(
            from_slice::<Record>(br#"{"name":"0edc182a","count":7}"#),
            Ok(record),
            "of an earlier version"
        );
        assert!(from_slice::<Record>(&json[..json.len() - 1]).is_err());
    }
}
