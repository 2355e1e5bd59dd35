//! Any bytes as a piece: every decoder gives the same values or the same error.
//!
//! Input: tokens − 1, coefficients, one byte a coefficient (its coding), then the piece.
#![no_main]

use std::sync::LazyLock;

use kvasir_codec::rans::{AliasTable, Coding, PieceDecoder, PiecePlan, TableBank, TritTable};
use kvasir_codec_fuzz as _;
use libfuzzer_sys::fuzz_target;

static BANK: LazyLock<TableBank> = LazyLock::new(|| {
    let peaked = [1, 1, 2, 5, 12, 60, 400, 2000, 380, 70, 10, 6, 2, 1, 1, 3];
    let stages = [peaked, [1; 16]].map(|counts| AliasTable::from_counts(&counts));
    let trit = TritTable::from_counts(&[[30, 40, 30], [45, 33, 22]]);
    TableBank::new(stages.to_vec(), vec![trit]).expect("few tables")
});

fn coding(byte: u8) -> Coding {
    match byte % 4 {
        3 => Coding::Trit { table: 0 },
        table => Coding::Stage { table: table % 2, trits: byte >> 6, trit_table: 0 },
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[tokens, coefficients], rest)) = data.split_first_chunk() else { return };
    let Some((codings, piece)) = rest.split_at_checked(coefficients.into()) else { return };
    let codings: Vec<Coding> = codings.iter().copied().map(coding).collect();
    let plan = PiecePlan { coefficients: &codings, tokens: usize::from(tokens) + 1 };
    let verdict = |decoder: PieceDecoder| {
        let mut values: Vec<i32> = (0..plan.value_count() as i32).map(|i| i % 5 - 2).collect();
        decoder.decode_piece(&BANK, &plan, piece, &mut values).map(|()| values)
    };
    let scalar = verdict(PieceDecoder::scalar());
    for decoder in PieceDecoder::available() {
        assert_eq!(verdict(decoder), scalar, "{}", decoder.name());
    }
});
