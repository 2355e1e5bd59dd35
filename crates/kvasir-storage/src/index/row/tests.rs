use proptest::prelude::*;

use super::*;
use crate::index::{key, position::RowPosition, scope::Scope};

pub(crate) fn any_entry() -> impl Strategy<Value = IndexEntry> {
    let hashes = (any::<[u8; 32]>(), any::<[u8; 32]>(), any::<[u8; 32]>(), any::<[u8; 32]>());
    let blocks = prop::collection::vec(any::<[u8; BLOCK_BYTES]>(), 1..130);
    let sizes = (any::<u64>(), any::<u32>(), 0f32..1.0, any::<u32>(), any::<u64>());
    let levels = prop::collection::vec(any::<(u64, u8)>(), 0..=LEVELS_MAX);
    (hashes, blocks, sizes, levels, any::<Option<(u8, u8)>>()).prop_map(
        |((parent_hash, seq, object, profile), blocks, sizes, levels, errors)| IndexEntry {
            parent_hash,
            blocks: blocks.iter().map(|b| short(b)).collect(),
            row: Arc::new(IndexRow {
                seq_hash: seq.into(),
                object_digest: object.into(),
                profile_hash: profile.into(),
                first_position: sizes.0,
                token_count: sizes.1,
                kl_beneath: sizes.2,
                head_bytes: sizes.3,
                object_bytes: sizes.4,
                level_bytes: levels.iter().map(|(bytes, _)| *bytes).collect(),
                errors: errors.map(|(beneath, hops)| ChunkErrors {
                    levels: levels.iter().map(|(_, error)| LevelError::from_byte(*error)).collect(),
                    beneath: LevelError::from_byte(beneath),
                    hops,
                }),
            }),
        },
    )
}

proptest! {
    #[test]
    fn rows_round_trip_and_every_flipped_bit_is_noticed(
        entry in any_entry(), continues: bool, alone: bool, at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let row = &*entry.row;
        prop_assert_eq!(IndexRow::from_bytes(&row.to_bytes()), Some(row.clone()));
        let key = key::info(Scope::new(&"t".parse().expect("a name"), &[7; 32].into()), RowPosition::under(&[1; 32]), row);
        let mut row = row.clone();
        row.token_count = (entry.blocks.len() * BLOCK_TOKENS) as u32;
        let blocks = if alone { &entry.blocks[..] } else { &[] };
        let value = row.value(&key, continues, blocks);
        prop_assert_eq!(IndexRow::decode(&key, &value).expect("sound"), Decoded { row, continues, blocks });
        let (mut bad_key, mut bad_value) = (key.clone(), value.clone());
        let at = at.index(key.len() + value.len());
        match at.checked_sub(key.len()) {
            None => bad_key[at] ^= 1u8 << bit,
            Some(at) => bad_value[at] ^= 1u8 << bit,
        }
        prop_assert!(IndexRow::decode(&bad_key, &bad_value).is_err());
    }

    #[test]
    fn rows_of_the_version_before_are_read(entry in any_entry()) {
        let row = IndexRow { errors: None, ..(*entry.row).clone() };
        let mut before = row.to_bytes();
        before[0] = VALUE_VERSION_BEFORE;
        prop_assert_eq!(before.pop(), Some(0));
        prop_assert_eq!(IndexRow::from_bytes(&before), Some(row));
    }

    #[test]
    fn no_bytes_panic(key in prop::collection::vec(any::<u8>(), 0..200), value in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(IndexRow::decode(&key, &value).is_err());
        let _ = IndexRow::from_bytes(&value);
    }
}
