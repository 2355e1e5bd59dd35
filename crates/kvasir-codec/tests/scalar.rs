//! The scalar path on few values: every coding, escapes of both lengths, a partial row and damage. Small enough for Miri
//! (README, "What is tested"). Prefixes of the same piece are decoded in `src/rans/prefix_tests.rs`.

use kvasir_codec::rans::{PieceDecoder, PieceEncoder, PiecePlan};

#[path = "common/few_values.rs"]
mod few_values;

use few_values::{CODINGS, TOKENS, bank, before, values};

#[test]
fn few_values_come_back_and_damage_is_an_error_or_other_values() {
    let (bank, values) = (bank(), values());
    let plan = PiecePlan { coefficients: &CODINGS, tokens: TOKENS };
    let mut piece = Vec::new();
    PieceEncoder::scalar().encode_piece(&bank, &plan, &values, &mut piece).expect("in range");
    let decoder = PieceDecoder::scalar();
    let mut back = before(&values);
    decoder.decode_piece(&bank, &plan, &piece, &mut back).expect("what was encoded");
    assert_eq!(back, values);

    let mut refused = 0;
    for at in (0..piece.len()).step_by(9) {
        let (mut damaged, mut back) = (piece.clone(), before(&values));
        damaged[at] ^= 0x44;
        match decoder.decode_piece(&bank, &plan, &damaged, &mut back) {
            Ok(()) => assert_ne!(back, values, "{at}"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > piece.len() / 9 / 2, "{refused}");
}
