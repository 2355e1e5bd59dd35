//! Properties of the entropy stage: a bijection on its domain, total outside of it, and close to the entropy.

use kvasir_codec::rans::{
    ALPHABET, AliasTable, Coding, ESCAPE, ESCAPE_MAX, PieceDecoder, PieceEncoder, PieceError, PiecePlan,
    StageSymbol, TableBank, TableError, TritTable, VALUE_MAX, coarsen, decode_piece, encode_piece, normalise,
};
use proptest::prelude::*;

/// Counts of every temper: flat, peaked, mostly zero, certain.
fn counts<const N: usize>() -> impl Strategy<Value = [u64; N]> {
    let count = prop_oneof![3 => Just(0u64), 3 => 1u64..10, 2 => 10u64..10_000, 1 => any::<u64>()];
    prop::collection::vec(count, N).prop_map(|v| v.try_into().expect("N counts"))
}

fn bank() -> impl Strategy<Value = TableBank> {
    let trit = (counts::<3>(), counts::<3>()).prop_map(|(a, b)| TritTable::from_counts(&[a, b]));
    let stage = counts::<ALPHABET>().prop_map(|c| AliasTable::from_counts(&c));
    (prop::collection::vec(stage, 1..6), prop::collection::vec(trit, 1..4))
        .prop_map(|(stage, trit)| TableBank::new(stage, trit).expect("few tables"))
}

#[derive(Debug, Clone)]
struct Piece {
    bank: TableBank,
    codings: Vec<Coding>,
    tokens: usize,
    values: Vec<i32>,
}

impl Piece {
    fn plan(&self) -> PiecePlan<'_> {
        PiecePlan { coefficients: &self.codings, tokens: self.tokens }
    }

    /// The bytes of every encoder of this CPU, which have to be the same.
    fn encode(&self) -> Vec<u8> {
        let bytes = |encoder: PieceEncoder| {
            let mut out = vec![0xaa];
            encoder.encode_piece(&self.bank, &self.plan(), &self.values, &mut out).expect("encodable");
            assert_eq!(out.remove(0), 0xaa);
            out
        };
        let scalar = bytes(PieceEncoder::scalar());
        for encoder in PieceEncoder::available() {
            assert_eq!(bytes(encoder), scalar, "{} differs from scalar", encoder.name());
        }
        scalar
    }

    /// What a decoder knows before: rubbish where a value enters here, the coarser value where it is refined.
    fn before(&self) -> Vec<i32> {
        let coding = |i: usize| self.codings[i / self.tokens];
        let known = |(i, &v): (usize, &i32)| match coding(i) {
            Coding::Stage { .. } => -99,
            Coding::Trit { .. } => coarsen(v),
        };
        self.values.iter().enumerate().map(known).collect()
    }

    /// The verdict of every decoder of this CPU, which has to be one.
    fn decode(&self, bytes: &[u8]) -> Result<Vec<i32>, PieceError> {
        let verdict = |decoder: PieceDecoder| {
            let mut values = self.before();
            decoder.decode_piece(&self.bank, &self.plan(), bytes, &mut values).map(|()| values)
        };
        let scalar = verdict(PieceDecoder::scalar());
        for decoder in PieceDecoder::available() {
            assert_eq!(verdict(decoder), scalar, "{} differs from scalar", decoder.name());
        }
        scalar
    }
}

fn value() -> impl Strategy<Value = i32> {
    prop_oneof![
        30 => -3i32..=3,
        10 => -9i32..=9,
        2 => -200i32..=200,
        1 => prop::sample::select(vec![126, 127, -126, -127, ESCAPE_MAX, -ESCAPE_MAX]),
    ]
}

/// Extremes that force the raw representation now and then.
fn extreme() -> impl Strategy<Value = i32> {
    prop_oneof![400 => value(), 1 => prop::sample::select(vec![VALUE_MAX, -VALUE_MAX, ESCAPE_MAX + 1])]
}

fn piece(coefficients_max: usize, tokens_max: usize) -> impl Strategy<Value = Piece> {
    (bank(), 1..=coefficients_max, 1..=tokens_max, any::<bool>()).prop_flat_map(|(bank, n, tokens, wild)| {
        let (stages, trits) = (bank.stage_tables().len() as u8, bank.trit_tables().len() as u8);
        let stage = (0..stages, prop_oneof![4 => Just(0u8), 1 => 1u8..=7], 0..trits);
        let coding = prop_oneof![
            3 => stage.prop_map(|(table, trits, trit_table)| Coding::Stage { table, trits, trit_table }),
            1 => (0..trits).prop_map(|table| Coding::Trit { table }),
        ];
        let value = if wild { extreme().boxed() } else { value().boxed() };
        let values = prop::collection::vec(value, n * tokens);
        (Just(bank), prop::collection::vec(coding, n), Just(tokens), values, 0..=n).prop_map(
            |(bank, codings, tokens, mut values, kept)| {
                values[kept * tokens..].fill(0); // variance-ordered: the tail vanishes
                Piece { bank, codings, tokens, values }
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_frequencies_give_a_bijective_table(c in counts::<ALPHABET>()) {
        let frequencies = normalise(&c, &[0; ALPHABET]);
        prop_assert_eq!(frequencies.iter().sum::<u32>(), 4096);
        for (count, frequency) in c.iter().zip(frequencies) {
            prop_assert!((*count > 0) == (frequency > 0) || c.iter().all(|&n| n == 0));
        }
        let table = AliasTable::from_frequencies(&frequencies.map(|f| f as u16)).unwrap();
        // the loader checks the bijection slot by slot
        prop_assert_eq!(&AliasTable::from_bytes(&table.to_bytes()), &Ok(table));
    }

    #[test]
    fn a_damaged_table_is_refused_or_still_a_bijection(
        c in counts::<ALPHABET>(), byte in 0..AliasTable::BYTES, flip in 1u8..,
    ) {
        let mut bytes = AliasTable::from_counts(&c).to_bytes();
        bytes[byte] ^= flip;
        if let Ok(table) = AliasTable::from_bytes(&bytes) {
            prop_assert_eq!(table.to_bytes(), bytes);
            prop_assert_eq!(table.frequencies().iter().map(|&f| u32::from(f)).sum::<u32>(), 4096);
        }
    }

    #[test]
    fn random_words_are_no_table(bytes in any::<[u8; 32]>()) {
        let bytes: [u8; 128] = std::array::from_fn(|i| bytes[i % 32].wrapping_mul(i as u8 | 1));
        prop_assert!(AliasTable::from_bytes(&bytes).is_err());
    }

    #[test]
    fn banks_round_trip(bank in bank(), tail in prop::collection::vec(any::<u8>(), 0..9)) {
        let bytes = [bank.to_bytes(), tail.clone()].concat();
        prop_assert_eq!(bank.byte_len(), bytes.len() - tail.len());
        let (read, rest) = TableBank::from_bytes(&bytes).unwrap();
        prop_assert_eq!(rest, &tail[..]);
        prop_assert_eq!(read.stage_tables(), bank.stage_tables());
        prop_assert_eq!(read.trit_tables(), bank.trit_tables());
        prop_assert!(TableBank::from_bytes(&bytes[..bank.byte_len() - 1]).is_err());
    }

    #[test]
    fn what_was_encoded_is_decoded(piece in piece(20, 256)) {
        let bytes = piece.encode();
        prop_assert_eq!(piece.decode(&bytes).unwrap(), piece.values.clone());
        prop_assert_eq!(piece.encode(), bytes); // same symbols, same bytes
    }

    #[test]
    fn every_truncation_and_excess_is_detected(piece in piece(6, 70), cut in any::<prop::sample::Index>()) {
        let bytes = piece.encode();
        prop_assume!(!bytes.is_empty());
        let cut = 1 + cut.index(bytes.len());
        if cut < bytes.len() {
            prop_assert!(piece.decode(&bytes[..cut]).is_err());
        }
        prop_assert!(piece.decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn damage_never_panics(
        piece in piece(6, 70), hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = piece.encode();
        prop_assume!(!bytes.is_empty());
        for (at, byte) in hits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = piece.decode(&bytes);
    }

    #[test]
    fn strangers_never_panic(piece in piece(6, 40), bytes in prop::collection::vec(any::<u8>(), 1..900)) {
        let _ = piece.decode(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn wide_pieces_round_trip(piece in piece(300, 256)) {
        prop_assert_eq!(piece.decode(&piece.encode()).unwrap(), piece.values);
    }
}

/// A Laplacian source, quantised, without a random number generator: quantiles in a scrambled order.
fn laplace(count: usize, sigma_steps: f64) -> Vec<i32> {
    let quantile = |i: usize| {
        let u = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        -u.signum() * (1.0 - 2.0 * u.abs()).ln() * sigma_steps / 2f64.sqrt()
    };
    (1..=count).map(|i| quantile(i).round() as i32).collect()
}

fn histogram(values: &[i32]) -> [u64; ALPHABET] {
    values.iter().fold([0; ALPHABET], |mut counts, &v| {
        counts[StageSymbol::of(v).index()] += 1;
        counts
    })
}

#[test]
fn the_coded_size_is_the_entropy_and_one_percent() {
    for sigma in [0.5, 1.0, 1.8] {
        let (coefficients, tokens) = (256, 256);
        let values = laplace(coefficients * tokens, sigma);
        let table = AliasTable::from_counts(&histogram(&values));
        let ideal_bits: f64 = values.iter().map(|&v| f64::from(table.cost_bits(v))).sum();
        let entropy = |n: u64| -(n as f64) * (n as f64 / values.len() as f64).log2();
        let symbol_bits: f64 = histogram(&values).into_iter().filter(|&n| n > 0).map(entropy).sum();
        let escapes = values.iter().filter(|v| v.abs() > 7).count() as f64;
        let bank = TableBank::new(vec![table], vec![]).unwrap();
        let codings = vec![Coding::Stage { table: 0, trits: 0, trit_table: 0 }; coefficients];
        let plan = PiecePlan { coefficients: &codings, tokens };
        let mut bytes = Vec::new();
        encode_piece(&bank, &plan, &values, &mut bytes).unwrap();
        // the words alone: states cost 128 bytes a stream, of which 32 carry payload
        let coded_bits = (bytes.len() - 8 - 2 * 128) as f64 * 8.0 + 2.0 * 32.0 * 8.0;
        assert!((coded_bits / ideal_bits - 1.0).abs() < 0.002, "{sigma}: {coded_bits} against {ideal_bits}");
        let source_bits = symbol_bits + 8.0 * escapes;
        assert!(ideal_bits < source_bits * 1.003, "{sigma}: tables cost {ideal_bits} against {source_bits}");
    }
}

#[test]
fn another_profile_is_an_error_and_never_numbers() {
    let values = laplace(64 * 256, 1.0);
    let bank = |sigma| {
        let table = AliasTable::from_counts(&histogram(&laplace(4096, sigma)));
        TableBank::new(vec![table], vec![]).unwrap()
    };
    let codings = vec![Coding::Stage { table: 0, trits: 0, trit_table: 0 }; 64];
    let plan = PiecePlan { coefficients: &codings, tokens: 256 };
    let mut bytes = Vec::new();
    encode_piece(&bank(1.0), &plan, &values, &mut bytes).unwrap();
    let mut out = vec![0; values.len()];
    assert_eq!(decode_piece(&bank(1.0), &plan, &bytes, &mut out), Ok(()));
    let wrong = decode_piece(&bank(1.1), &plan, &bytes, &mut out);
    assert!(matches!(wrong, Err(PieceError::FinalState { .. } | PieceError::Underrun { .. })), "{wrong:?}");
    let shifted = decode_piece(&bank(1.0), &PiecePlan { tokens: 255, ..plan }, &bytes, &mut out[..64 * 255]);
    assert!(shifted.is_err());
}

#[test]
fn all_zero_is_an_absent_piece() {
    let bank =
        TableBank::new(vec![AliasTable::from_counts(&[1; 16])], vec![TritTable::from_counts(&[[1; 3]; 2])])
            .unwrap();
    let codings = [Coding::Stage { table: 0, trits: 0, trit_table: 0 }, Coding::Trit { table: 0 }];
    let plan = PiecePlan { coefficients: &codings, tokens: 2 };
    let mut bytes = Vec::new();
    encode_piece(&bank, &plan, &[0, 0, 3, -9], &mut bytes).unwrap(); // digits of multiples of 3 are 0
    assert!(bytes.is_empty());
    let mut values = [7, 7, 1, -3];
    decode_piece(&bank, &plan, &[], &mut values).unwrap();
    assert_eq!(values, [0, 0, 3, -9]);
}

#[test]
fn a_certain_symbol_costs_states_only() {
    let mut frequencies = [0u16; ALPHABET];
    frequencies[StageSymbol::of(2).index()] = 4096;
    let bank = TableBank::new(vec![AliasTable::from_frequencies(&frequencies).unwrap()], vec![]).unwrap();
    let codings = [Coding::Stage { table: 0, trits: 0, trit_table: 0 }; 3];
    let plan = PiecePlan { coefficients: &codings, tokens: 256 };
    let mut bytes = Vec::new();
    encode_piece(&bank, &plan, &[2; 768], &mut bytes).unwrap();
    assert_eq!(bytes.len(), 4 + 128);
    let mut values = [0; 768];
    decode_piece(&bank, &plan, &bytes, &mut values).unwrap();
    assert_eq!(values, [2; 768]);
    // without an escape every other value makes the piece raw
    bytes.clear();
    encode_piece(&bank, &plan, &[1; 768], &mut bytes).unwrap();
    assert_eq!(bytes[1] & 0x80, 0x80);
    decode_piece(&bank, &plan, &bytes, &mut values).unwrap();
    assert_eq!(values, [1; 768]);
}

#[test]
fn too_many_words_make_a_piece_raw() {
    // 24 bits of payload behind a symbol of 12 bits: 128 × 256 × 36 bits are 73,728 words
    let mut counts = [1u64 << 40; ALPHABET];
    counts[ESCAPE] = 1;
    let table = AliasTable::from_counts(&counts);
    let bank = TableBank::new(vec![table], vec![]).unwrap();
    let codings = vec![Coding::Stage { table: 0, trits: 0, trit_table: 0 }; 128];
    let plan = PiecePlan { coefficients: &codings, tokens: 256 };
    let values: Vec<i32> = (0..128 * 256).map(|i| if i % 2 == 0 { 60_000 - i } else { i - 60_000 }).collect();
    let mut bytes = Vec::new();
    encode_piece(&bank, &plan, &values, &mut bytes).unwrap();
    assert_eq!(bytes[1] & 0x80, 0x80);
    let mut out = vec![0; values.len()];
    decode_piece(&bank, &plan, &bytes, &mut out).unwrap();
    assert_eq!(out, values);
}

#[test]
fn callers_mistakes_are_typed() {
    let bank = TableBank::new(vec![AliasTable::from_counts(&[1; 16])], vec![]).unwrap();
    let stage = |table, trits| Coding::Stage { table, trits, trit_table: 0 };
    let mut out = Vec::new();
    let mut encode = |codings: &[Coding], tokens, values: &[i32]| {
        encode_piece(&bank, &PiecePlan { coefficients: codings, tokens }, values, &mut out)
    };
    assert!(matches!(encode(&[stage(0, 0)], 257, &[0; 257]), Err(PieceError::Shape { .. })));
    assert!(matches!(encode(&[stage(0, 0)], 0, &[]), Err(PieceError::Shape { .. })));
    assert!(matches!(encode(&[stage(0, 0)], 2, &[0; 3]), Err(PieceError::ValueCount { .. })));
    assert!(matches!(encode(&[stage(1, 0)], 1, &[0]), Err(PieceError::Coding { coefficient: 0, .. })));
    assert!(matches!(encode(&[stage(0, 1)], 1, &[0]), Err(PieceError::Coding { coefficient: 0, .. })));
    assert!(matches!(encode(&[Coding::Trit { table: 0 }], 1, &[0]), Err(PieceError::Coding { .. })));
    let too_large = encode(&[stage(0, 0)], 2, &[0, VALUE_MAX + 1]);
    assert!(matches!(too_large, Err(PieceError::ValueRange { coefficient: 0, token: 1, .. })));
    assert!(matches!(encode(&[stage(0, 0)], 2, &[0, i32::MIN]), Err(PieceError::ValueRange { .. })));
    assert!(matches!(AliasTable::from_frequencies(&[0; 16]), Err(TableError::Sum { sum: 0 })));
    assert!(matches!(TritTable::new([[5, 4], [0, 0]]), Err(TableError::Thresholds { context: 0, .. })));
}
