//! Few values under every coding, for tests small enough for Miri.
#![allow(unreachable_pub, reason = "part of tests")]

use kvasir_codec::rans::{AliasTable, Coding, TableBank, TritTable, coarsen};

pub const TOKENS: usize = 40;
pub const CODINGS: [Coding; 4] = [
    Coding::Stage { table: 0, trits: 0, trit_table: 0 },
    Coding::Stage { table: 1, trits: 2, trit_table: 0 },
    Coding::Trit { table: 0 },
    Coding::Stage { table: 1, trits: 0, trit_table: 0 },
];

pub fn bank() -> TableBank {
    let wide = AliasTable::from_counts(&[3, 3, 4, 5, 6, 8, 9, 20, 9, 8, 6, 5, 4, 3, 3, 2]);
    let narrow = AliasTable::from_counts(&[0, 0, 0, 0, 0, 0, 9, 4000, 9, 0, 0, 0, 0, 0, 0, 9]);
    TableBank::new(vec![wide, narrow], vec![TritTable::from_counts(&[[30, 40, 30], [45, 33, 22]])])
        .expect("few tables")
}

/// What the tables expect, and a few for escapes, short and long: were there more, the piece would be raw.
pub fn values() -> Vec<i32> {
    let value = |i: i32| match i {
        21 | 60 => 90 - i,
        130 => -4000,
        120.. => 0,
        _ => i * 7 % 9 - 4,
    };
    (0..(CODINGS.len() * TOKENS) as i32).map(value).collect()
}

pub fn before(values: &[i32]) -> Vec<i32> {
    let known = |(i, v): (usize, &i32)| match CODINGS[i / TOKENS] {
        Coding::Stage { .. } => 0,
        Coding::Trit { .. } => coarsen(*v),
    };
    values.iter().enumerate().map(known).collect()
}
