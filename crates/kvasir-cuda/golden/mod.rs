//! Golden vectors of the entropy stage, as `kvasir-codec` keeps them: for the tests and for `gpu_check` (`kvasir-lab-gpu`).

#![allow(unreachable_pub, missing_docs, reason = "shared by a test and a program, each a crate of its own")]

use kvasir_codec::rans::Coding;

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().as_chunks::<2>().0;
    digits
        .iter()
        .map(|d| u8::from_str_radix(std::str::from_utf8(d).expect("ascii"), 16).expect("hex"))
        .collect()
}

/// A golden vector of `kvasir-codec`.
pub struct Golden {
    pub bank: Vec<u8>,
    pub tokens: usize,
    pub codings: Vec<Coding>,
    pub before: Vec<i32>,
    pub piece: Vec<u8>,
}

/// Reads one.
pub fn parse(text: &str) -> Golden {
    let mut golden = Golden { bank: vec![], tokens: 0, codings: vec![], before: vec![], piece: vec![] };
    for (key, rest) in text.lines().filter_map(|line| line.split_once(' ').or(Some((line, "")))) {
        let numbers = || rest.split(' ').filter_map(|n| n.parse::<i32>().ok()).collect::<Vec<_>>();
        match key {
            "bank" => golden.bank = unhex(rest),
            "tokens" => golden.tokens = numbers()[0] as usize,
            "coding" => {
                let numbers: Vec<u8> = numbers().iter().map(|n| *n as u8).collect();
                golden.codings.push(match numbers[..] {
                    [table, trits, trit_table] => Coding::Stage { table, trits, trit_table },
                    _ => Coding::Trit { table: numbers[0] },
                });
            }
            "before" => golden.before = numbers(),
            "piece" => golden.piece = unhex(rest),
            _ => {}
        }
    }
    golden.before.resize(golden.codings.len() * golden.tokens, 0);
    golden
}
