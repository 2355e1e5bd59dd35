//! The entropy stage alone: golden vectors, shapes and hostile bytes against the scalar decoder, values and errors.

use std::{fs, path::PathBuf};

use kvasir_codec::rans::{
    AliasTable, Coding, PieceDecoder, PieceError, PiecePlan, TableBank, TritTable, coarsen, encode_piece,
};
use proptest::prelude::*;

use super::emulated::EmulatedDevice;
use crate::decode_piece;

/// Decodes a piece with the kernels, as a scope of one level.
fn decode(
    bank: &TableBank,
    codings: &[Coding],
    tokens: usize,
    bytes: &[u8],
    before: &[i32],
) -> Result<Vec<i32>, PieceError> {
    decode_piece(&EmulatedDevice::default(), bank, codings, tokens, bytes, before)
        .expect("the emulator works")
}

fn scalar(
    bank: &TableBank,
    codings: &[Coding],
    tokens: usize,
    bytes: &[u8],
    before: &[i32],
) -> Result<Vec<i32>, PieceError> {
    let mut values = before.to_vec();
    let plan = PiecePlan { coefficients: codings, tokens };
    PieceDecoder::scalar().decode_piece(bank, &plan, bytes, &mut values).map(|()| values)
}

#[path = "../../golden/mod.rs"]
mod golden;

use golden::{Golden, parse};

#[test]
fn golden_pieces_decode_as_the_scalar_decoder_says() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../kvasir-codec/tests/golden");
    let mut compared = [0, 0];
    for verdict in ["ok", "err"] {
        for entry in fs::read_dir(folder.join(verdict)).expect("golden vectors") {
            let path = entry.expect("readable").path();
            if path.extension().is_none_or(|e| e != "piece") {
                continue;
            }
            let golden = parse(&fs::read_to_string(&path).expect("text"));
            let Ok((bank, _)) = TableBank::from_bytes(&golden.bank) else { continue };
            let Golden { tokens, codings, before, piece, .. } = &golden;
            let expected = scalar(&bank, codings, *tokens, piece, before);
            assert_eq!(expected.is_ok(), verdict == "ok", "{}", path.display());
            assert_eq!(decode(&bank, codings, *tokens, piece, before), expected, "{}", path.display());
            compared[usize::from(expected.is_ok())] += 1;
        }
    }
    assert!(compared[1] >= 10 && compared[0] >= 10, "{compared:?}");
}

fn bank() -> TableBank {
    let narrow = AliasTable::from_counts(&[0, 0, 0, 0, 1, 5, 60, 200, 60, 5, 1, 0, 0, 0, 0, 2]);
    let wide = AliasTable::from_counts(&[9, 12, 20, 30, 41, 52, 60, 66, 60, 50, 41, 31, 20, 12, 8, 9]);
    let trits = [[[30, 40, 30], [45, 33, 22]], [[10, 80, 10], [20, 70, 10]]];
    TableBank::new(vec![narrow, wide], trits.iter().map(TritTable::from_counts).collect()).expect("small")
}

fn codings() -> impl Strategy<Value = Vec<Coding>> {
    let coding = prop_oneof![
        3 => (0..2u8, 0..3u8, 0..2u8).prop_map(|(table, trits, trit_table)| Coding::Stage { table, trits, trit_table }),
        1 => (0..2u8).prop_map(|table| Coding::Trit { table }),
    ];
    prop::collection::vec(coding, 1..150)
}

fn values(count: usize, seed: u64, spread: i32) -> Vec<i32> {
    let mut noise = super::common::Noise::new(seed);
    let mut value = |i: usize| {
        let rare = if i.is_multiple_of(61) { 40.0 } else { 1.0 };
        (noise.normal() * spread as f32 * rare) as i32
    };
    (0..count).map(&mut value).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_and_damaged_pieces_decode_alike(
        codings in codings(), tokens in 1usize..=70, seed in any::<u64>(), spread in 0i32..30,
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..3),
    ) {
        let (bank, values) = (bank(), values(codings.len() * tokens, seed, spread));
        let mut piece = Vec::new();
        encode_piece(&bank, &PiecePlan { coefficients: &codings, tokens }, &values, &mut piece).expect("small values");
        let before: Vec<i32> = (values.iter().enumerate())
            .map(|(i, v)| if matches!(codings[i / tokens], Coding::Trit { .. }) { coarsen(*v) } else { 0 })
            .collect();
        if damage.is_empty() {
            prop_assert_eq!(decode(&bank, &codings, tokens, &piece, &before), Ok(values));
            return Ok(());
        }
        if piece.is_empty() {
            return Ok(()); // an absent piece has no bytes to damage
        }
        for (index, bit) in &damage {
            let at = index.index(piece.len());
            piece[at] ^= 1 << bit;
        }
        let expected = scalar(&bank, &codings, tokens, &piece, &before);
        prop_assert_eq!(decode(&bank, &codings, tokens, &piece, &before), expected);
    }
}
