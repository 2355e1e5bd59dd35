//! The scalar path on few values: every coding, escapes of both lengths, a partial row, prefixes and damage. Small enough for
//! Miri (README, "What is tested").

use kvasir_codec::rans::{
    AliasTable, Coding, PieceDecoder, PieceEncoder, PiecePlan, TableBank, TritTable, coarsen,
};

const TOKENS: usize = 40;
const CODINGS: [Coding; 4] = [
    Coding::Stage { table: 0, trits: 0, trit_table: 0 },
    Coding::Stage { table: 1, trits: 2, trit_table: 0 },
    Coding::Trit { table: 0 },
    Coding::Stage { table: 1, trits: 0, trit_table: 0 },
];

fn bank() -> TableBank {
    let wide = AliasTable::from_counts(&[3, 3, 4, 5, 6, 8, 9, 20, 9, 8, 6, 5, 4, 3, 3, 2]);
    let narrow = AliasTable::from_counts(&[0, 0, 0, 0, 0, 0, 9, 4000, 9, 0, 0, 0, 0, 0, 0, 9]);
    TableBank::new(vec![wide, narrow], vec![TritTable::from_counts(&[[30, 40, 30], [45, 33, 22]])])
        .expect("few tables")
}

/// What the tables expect, and a few for escapes, short and long: were there more, the piece would be raw.
fn values() -> Vec<i32> {
    let value = |i: i32| match i {
        21 | 60 => 90 - i,
        130 => -4000,
        120.. => 0,
        _ => i * 7 % 9 - 4,
    };
    (0..(CODINGS.len() * TOKENS) as i32).map(value).collect()
}

fn before(values: &[i32]) -> Vec<i32> {
    let known = |(i, v): (usize, &i32)| match CODINGS[i / TOKENS] {
        Coding::Stage { .. } => 0,
        Coding::Trit { .. } => coarsen(*v),
    };
    values.iter().enumerate().map(known).collect()
}

#[test]
fn few_values_come_back_whole_and_in_part_and_damage_is_an_error_or_other_values() {
    let (bank, values) = (bank(), values());
    let plan = PiecePlan { coefficients: &CODINGS, tokens: TOKENS };
    let mut piece = Vec::new();
    PieceEncoder::scalar().encode_piece(&bank, &plan, &values, &mut piece).expect("in range");
    let decoder = PieceDecoder::scalar();
    let mut back = before(&values);
    decoder.decode_piece(&bank, &plan, &piece, &mut back).expect("what was encoded");
    assert_eq!(back, values);

    let mut rows = Vec::new();
    for end in [0, 1, 40, piece.len() / 2, piece.len() * 9 / 10, piece.len()] {
        let mut back = before(&values);
        let arrived = decoder.decode_arrived(&bank, &plan, &piece[..end], &mut back).expect("a prefix");
        let tokens = arrived.first().map_or(0, |rows| rows.tokens);
        let same = |t: usize| (0..CODINGS.len()).all(|c| back[c * TOKENS + t] == values[c * TOKENS + t]);
        assert!((0..tokens).all(same), "{end}");
        rows.push(tokens);
    }
    assert!(rows.is_sorted() && rows.last() == Some(&TOKENS), "{rows:?}");

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
