//! The entropy stage alone: golden vectors, shapes and hostile bytes against the scalar decoder, values and errors.

use std::{fs, path::PathBuf};

use kvasir_codec::rans::{
    AliasTable, Coding, PieceDecoder, PieceError, PiecePlan, TableBank, TritTable, coarsen, encode_piece,
    piece_parts,
};
use kvasir_kernels::{DecodeParams, Kernel, Record, Status, TASK_REFINES, record_bytes};
use proptest::prelude::*;

use super::emulated::Emulated;
use crate::{
    Device, DeviceFetch, DeviceMemory, Work,
    lower::{Lowered, PlacedPiece, ScopeCodings, lower, piece_error},
};

/// Offset of the piece in the batch: errors must not count from there.
const OFFSET: usize = 12;

/// Decodes a piece with the kernels, as a scope of one level.
fn decode(
    bank: &TableBank,
    codings: &[Coding],
    tokens: usize,
    bytes: &[u8],
    before: &[i32],
) -> Result<Vec<i32>, PieceError> {
    let parts = piece_parts(bank, &PiecePlan { coefficients: codings, tokens }, bytes)?;
    let indices: Vec<usize> = (0..codings.len()).collect();
    let scope = ScopeCodings::new(codings.len(), std::iter::once((&indices[..], codings)));
    let piece = PlacedPiece { section: 0, offset: OFFSET as u32, parts };
    let mut work = match lower(&scope, 0, tokens, &[piece]) {
        Lowered::Fused(work) => work,
        Lowered::Staged(mut works) => works.remove(0),
    };
    work.tasks.iter_mut().for_each(|task| task.flags |= TASK_REFINES);
    let device = Emulated::default();
    let up = |label, bytes: Vec<u8>| device.upload(label, &bytes).expect("host memory");
    let placed = [&[0xee; OFFSET][..], bytes].concat();
    let (uploaded, streams) = (up("bytes", placed.clone()), up("streams", record_bytes(&work.streams)));
    let (tasks, codings) =
        (up("tasks", record_bytes(&work.tasks)), up("codings", record_bytes(&scope.words)));
    let tables = up("tables", bank.to_bytes().split_off(4));
    let (values, counter) = (up("values", record_bytes(before)), up("counter", vec![0; 4]));
    let statuses = up("statuses", vec![0; work.streams.len() * size_of::<Status>()]);
    let params = DecodeParams {
        bytes: uploaded.address(),
        tasks: tasks.address(),
        streams: streams.address(),
        codings: codings.address(),
        statuses: statuses.address(),
        tables: tables.address(),
        counter: counter.address(),
        values: values.address(),
        task_count: work.tasks.len() as u32,
        stage_tables: bank.stage_tables().len() as u32,
        trit_tables: bank.trit_tables().len() as u32,
        ..DecodeParams::default()
    };
    let mut record = Vec::new();
    params.write(&mut record);
    let shared = bank.byte_len();
    // SAFETY: every address is that of a live buffer with the records that the kernel expects.
    unsafe { device.launch(Kernel::Decode1, Work::Warps(work.tasks.len()), shared, &record) }.expect("runs");
    let back =
        |memory, bytes| device.fetch(memory, 0, bytes).and_then(DeviceFetch::bytes).expect("host memory");
    let words = back(&statuses, work.streams.len() * size_of::<Status>());
    for ((name, stream), word) in work.names.iter().zip(&work.streams).zip(words.as_chunks::<8>().0) {
        let (code, detail) = word.split_at(4);
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        let status = Status { code: number(code), detail: number(detail) };
        if let Some(name) = *name {
            piece_error(status, *stream, name, &placed).expect("the kernel reported")?;
        }
    }
    let out = back(&values, before.len() * 4);
    Ok(out.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect())
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

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().as_chunks::<2>().0;
    digits
        .iter()
        .map(|d| u8::from_str_radix(std::str::from_utf8(d).expect("ascii"), 16).expect("hex"))
        .collect()
}

struct Golden {
    bank: Vec<u8>,
    tokens: usize,
    codings: Vec<Coding>,
    before: Vec<i32>,
    piece: Vec<u8>,
}

fn parse(text: &str) -> Golden {
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
