//! Golden pieces: text files that hold bank, plan, bytes and values.

use std::fmt::Write as _;

use kvasir_codec::rans::{
    ALPHABET, AliasTable, Coding, ESCAPE_MAX, PieceError, PiecePlan, StageSymbol, TableBank, TritTable,
    VALUE_MAX, coarsen, decode_piece, encode_piece,
};

use crate::{Files, variant};

/// Values up to this many are written out; of more only the CRC.
const VALUES_WRITTEN_MAX: usize = 600;

const fn stage(table: u8, trits: u8, trit_table: u8) -> Coding {
    Coding::Stage { table, trits, trit_table }
}

const fn trit(table: u8) -> Coding {
    Coding::Trit { table }
}

/// Three stage tables (peaked, flat, only 0 and escape) and two trit tables.
fn bank() -> TableBank {
    let peaked = [1, 1, 2, 5, 12, 60, 400, 2000, 380, 70, 10, 6, 2, 1, 1, 3];
    let mut only_zero = [0; ALPHABET];
    only_zero[StageSymbol::of(0).index()] = 1;
    let stages = [peaked, [1; ALPHABET], only_zero].map(|counts| AliasTable::from_counts(&counts));
    let trits = [[[30, 40, 30], [45, 33, 22]], [[1, 6, 1], [9, 2, 1]]];
    TableBank::new(stages.to_vec(), trits.iter().map(TritTable::from_counts).collect()).expect("few tables")
}

/// A fixed sequence with small values mostly: a 64-bit linear congruential generator's high bits.
fn values(count: usize, seed: u64) -> Vec<i32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut value = || {
        let (a, b) = (next(), next());
        let small = (a % 3) as i32 - 1;
        if b.is_multiple_of(97) { small * (a as i32 % 700) } else { small * (b % 5) as i32 / 2 }
    };
    (0..count).map(|_| value()).collect()
}

/// Name, coding, tokens, values.
type Good = (&'static str, Vec<Coding>, usize, Vec<i32>);

fn good() -> Vec<Good> {
    // one escape a coefficient, at the token of the same number
    let extremes = [7, -7, 8, -8, 126, -126, 127, -127, 128, 300, -300, ESCAPE_MAX, -ESCAPE_MAX];
    let mut escapes = values(extremes.len() * 40, 6);
    extremes.iter().enumerate().for_each(|(c, &extreme)| escapes[c * 41] = extreme);
    let mut rare = vec![0; 40 * 40];
    (0..14).for_each(|i| rare[i * 107] = [1, -7, 7, 3][i % 4]);
    let mut tail = values(20 * 40, 3);
    tail[11 * 40..].fill(0);
    let mixed = [stage(0, 2, 0), stage(1, 1, 1), trit(1), stage(0, 0, 0), trit(0)];
    let raw = vec![VALUE_MAX, -VALUE_MAX, 0, 1, -1, 3, 4, 5, -5, -4, 2, 0, 0, 0, 1];
    vec![
        ("absent", vec![stage(0, 0, 0), trit(0)], 2, vec![0, 0, 3, -6]),
        ("escapes", vec![stage(0, 0, 0); extremes.len()], 40, escapes),
        ("escape-of-small-values", vec![stage(2, 0, 0); 40], 40, rare),
        ("partial-row", vec![stage(0, 0, 0); 41], 33, values(41 * 33, 1)),
        ("fewer-tokens-than-lanes", vec![stage(0, 0, 0); 60], 5, values(60 * 5, 8)),
        ("trits", [trit(0), trit(1)].repeat(50), 70, values(100 * 70, 2)),
        ("stage-and-trits", mixed.repeat(10), 64, values(50 * 64, 7)),
        ("inactive-tail", vec![stage(0, 0, 0); 20], 40, tail),
        ("two-streams", vec![stage(0, 0, 0); 131], 256, values(131 * 256, 4)),
        ("refinement-two-streams", vec![trit(0); 129], 250, values(129 * 250, 5)),
        ("raw", vec![stage(0, 0, 0), trit(0), stage(1, 0, 0)], 5, raw),
        ("raw-one-token", vec![stage(0, 0, 0)], 1, vec![-2]),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn list(values: &[i32]) -> String {
    values.iter().map(i32::to_string).collect::<Vec<_>>().join(" ")
}

fn crc(values: &[i32]) -> u32 {
    crc32c::crc32c(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

/// Rubbish-free input of the decoder: the coarser value where it is refined, 0 elsewhere.
fn before(codings: &[Coding], tokens: usize, values: &[i32]) -> Vec<i32> {
    let known = |(i, &v): (usize, &i32)| match codings[i / tokens] {
        Coding::Stage { .. } => 0,
        Coding::Trit { .. } => coarsen(v),
    };
    values.iter().enumerate().map(known).collect()
}

fn text(
    bank: &[u8],
    codings: &[Coding],
    tokens: usize,
    values: &[i32],
    piece: &[u8],
    verdict: &str,
) -> Vec<u8> {
    let mut text = format!("bank {}\ntokens {tokens}\n", hex(bank));
    for coding in codings {
        let line = match coding {
            Coding::Stage { table, trits, trit_table } => {
                format!("coding stage {table} {trits} {trit_table}")
            }
            Coding::Trit { table } => format!("coding trit {table}"),
        };
        text += &(line + "\n");
    }
    if codings.iter().any(|coding| matches!(coding, Coding::Trit { .. })) {
        text += &format!("before {}\n", list(&before(codings, tokens, values)));
    }
    text += &format!("piece {}\n{verdict}\n", hex(piece));
    text.into_bytes()
}

pub(crate) fn write(files: &mut Files) {
    let bank = bank();
    let bank_bytes = bank.to_bytes();
    for (name, codings, tokens, values) in good() {
        let mut piece = Vec::new();
        let plan = PiecePlan { coefficients: &codings, tokens };
        encode_piece(&bank, &plan, &values, &mut piece).expect("encodable");
        let is_raw = piece.get(1).is_some_and(|byte| byte & 0x80 != 0);
        assert_eq!(is_raw, name.starts_with("raw"), "{name} does not show what its name says");
        let verdict = match values.len() {
            ..=VALUES_WRITTEN_MAX => format!("values {}", list(&values)),
            _ => format!("values_crc32c {:08x}", crc(&values)),
        };
        let content = text(&bank_bytes, &codings, tokens, &values, &piece, &verdict);
        files.insert(format!("ok/{name}.piece"), content);
    }
    for (name, of, damage, error) in bad() {
        let (_, codings, tokens, values) = good().into_iter().find(|case| case.0 == of).expect("a good case");
        let (mut bank_bytes, mut piece) = (bank_bytes.clone(), Vec::new());
        let plan = PiecePlan { coefficients: &codings, tokens };
        encode_piece(&bank, &plan, &values, &mut piece).expect("encodable");
        damage(&mut bank_bytes, &mut piece);
        let content = text(&bank_bytes, &codings, tokens, &values, &piece, &format!("error {error}"));
        files.insert(format!("err/{name}.piece"), content);
    }
}

/// Damage to (bank, piece).
type Damage = fn(&mut Vec<u8>, &mut Vec<u8>);

/// Name, good piece it comes from, damage, error.
fn bad() -> Vec<(&'static str, &'static str, Damage, &'static str)> {
    fn set(bytes: &mut [u8], at: usize, new: &[u8]) {
        bytes[at..at + new.len()].copy_from_slice(new);
    }
    vec![
        ("truncated", "partial-row", |_, p| p.truncate(p.len() - 1), "Length"),
        ("only-one-byte", "partial-row", |_, p| p.truncate(1), "Length"),
        ("trailing", "partial-row", |_, p| p.push(0), "Length"),
        ("no-active-coefficient", "partial-row", |_, p| set(p, 0, &[0, 0]), "Active"),
        ("too-many-active", "partial-row", |_, p| set(p, 0, &[42, 0]), "Active"),
        ("fill-not-zero", "two-streams", |_, p| set(p, 6, &[1]), "Field"),
        ("state-too-small", "partial-row", |_, p| set(p, 4, &[0xff, 0x7f, 0, 0]), "State"),
        ("state-too-large", "partial-row", |_, p| set(p, 4, &[0, 0, 0, 0x80]), "State"),
        ("last-word-changed", "partial-row", |_, p| *p.last_mut().expect("not empty") ^= 1, "FinalState"),
        ("word-changed", "partial-row", |_, p| p[4 + 128] ^= 1, "Underrun"),
        (
            "last-word-missing",
            "partial-row",
            |_, p| {
                p.truncate(p.len() - 2);
                p[2] -= 1;
            },
            "Underrun",
        ),
        (
            "word-too-many",
            "partial-row",
            |_, p| {
                p.extend([0, 0]);
                p[2] += 1;
            },
            "FinalState",
        ),
        ("other-table", "partial-row", |bank, _| bank.copy_within(4 + 128..4 + 256, 4), "Underrun"),
        ("raw-truncated", "raw", |_, p| p.truncate(p.len() - 1), "Length"),
        ("raw-no-widths", "raw", |_, p| p.truncate(4), "Length"),
        ("raw-stage-width", "raw", |_, p| p[2] = 26, "Field"),
        ("raw-trit-width", "raw", |_, p| p[3] = 3, "Field"),
        ("raw-digit", "raw", |_, p| p[5 + 15] |= 0xff, "Field"),
        ("raw-fill-not-zero", "raw", |_, p| *p.last_mut().expect("not empty") |= 0x80, "Field"),
        ("table-reserved-bits", "raw-one-token", |bank, _| bank[7] |= 0x80, "Reserved"),
        ("table-not-bijective", "raw-one-token", |bank, _| bank[4 + 8 * 7 + 1] ^= 1, "Bijection"),
        (
            "trit-thresholds",
            "raw-one-token",
            |bank, _| {
                let n = bank.len();
                bank[n - 1] = 0x20;
            },
            "Thresholds",
        ),
        ("bank-too-short", "raw-one-token", |bank, _| bank.truncate(300), "Length"),
        ("bank-too-many-tables", "raw-one-token", |bank, _| bank[0] = 129, "Count"),
        (
            "table-missing",
            "stage-and-trits",
            |bank, _| {
                bank[0] = 1;
                bank.drain(4 + 128..4 + 384);
            },
            "Coding",
        ),
    ]
}

/// One golden piece, read back from its text.
struct Read {
    bank: Vec<u8>,
    tokens: usize,
    codings: Vec<Coding>,
    before: Option<Vec<i32>>,
    piece: Vec<u8>,
    verdict: (String, String),
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|d| u8::from_str_radix(str::from_utf8(d).expect("ASCII"), 16).expect("hex"))
        .collect()
}

fn unlist(text: &str) -> Vec<i32> {
    text.split_whitespace().map(|v| v.parse().expect("integer")).collect()
}

fn parse(text: &str) -> Read {
    let mut read = Read {
        bank: vec![],
        tokens: 0,
        codings: vec![],
        before: None,
        piece: vec![],
        verdict: Default::default(),
    };
    for line in text.lines() {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (key, rest.split_whitespace().collect::<Vec<_>>()[..].as_ref()) {
            ("bank", _) => read.bank = unhex(rest),
            ("tokens", _) => read.tokens = rest.parse().expect("count"),
            ("coding", ["stage", table, trits, trit_table]) => {
                let [table, trits, trit_table] =
                    [table, trits, trit_table].map(|n| n.parse().expect("index"));
                read.codings.push(stage(table, trits, trit_table));
            }
            ("coding", ["trit", table]) => read.codings.push(trit(table.parse().expect("index"))),
            ("before", _) => read.before = Some(unlist(rest)),
            ("piece", _) => read.piece = unhex(rest),
            _ => read.verdict = (key.to_owned(), rest.to_owned()),
        }
    }
    read
}

/// Decodes as a reader does: the bank first, then the piece. The error is named by its variant.
fn decode(read: &Read) -> Result<Vec<i32>, String> {
    let (bank, _) = TableBank::from_bytes(&read.bank).map_err(|e| variant(&e))?;
    let plan = PiecePlan { coefficients: &read.codings, tokens: read.tokens };
    let mut values = read.before.clone().unwrap_or_else(|| vec![-1; plan.value_count()]);
    let verdict: Result<(), PieceError> = decode_piece(&bank, &plan, &read.piece, &mut values);
    verdict.map(|()| values).map_err(|e| variant(&e))
}

pub(crate) fn read(files: &Files) {
    let mut seen = 0;
    for (name, content) in files.iter().filter(|(name, _)| name.ends_with(".piece")) {
        let read = parse(str::from_utf8(content).expect("text"));
        let (kind, expected) = (read.verdict.0.as_str(), &read.verdict.1);
        match (kind, decode(&read)) {
            ("values", Ok(values)) => assert_eq!(values, unlist(expected), "{name}"),
            ("values_crc32c", Ok(values)) => assert_eq!(&format!("{:08x}", crc(&values)), expected, "{name}"),
            ("error", Err(error)) => assert_eq!(&error, expected, "{name}"),
            (_, verdict) => panic!("{name}: {verdict:?} where the file says {kind} {expected}"),
        }
        seen += 1;
    }
    assert_eq!(seen, good().len() + bad().len());
}
