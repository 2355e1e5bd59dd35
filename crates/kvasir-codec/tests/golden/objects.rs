//! Golden chunk objects, good and bad, and the index of what a reader has to find.

use kvasir_container::{ChunkBuilder, ChunkMeta, Extension, HEADER_BYTES, Head, ObjectVerifier, SectionId};
use kvasir_types::{ChainLink, Level};

use crate::{Files, variant};

fn meta() -> ChunkMeta {
    ChunkMeta::new([0x11; 32].into(), [0x22; 32].into(), ChainLink::first([0x33; 32].into()))
}

/// One token, no section: the smallest object.
fn smallest() -> Vec<u8> {
    ChunkBuilder::new(meta(), vec![42]).and_then(ChunkBuilder::finish).expect("legal")
}

/// Two spans, two levels, an absent piece, a token before, two extensions that a reader skips, everything set.
fn two_levels() -> Vec<u8> {
    let meta = ChunkMeta {
        first_position: 1536,
        preceding_token: Some(128_000),
        level_count: 2,
        exact_tokens: 4,
        kl_beneath: 0.0078125,
        ..meta()
    };
    let tokens = (0..300u32).map(|i| i * i % 32_000 + (i / 150) * 0x0001_0000).collect();
    let mut builder = ChunkBuilder::new(meta, tokens).expect("legal");
    let id = |scope, level, flags| SectionId { scope, band: 0, level: Level(level), flags };
    let pieces = |n: u8| vec![Some(vec![n; 7]), (n != 1).then(|| vec![n ^ 0xff, 2, 3])];
    for (index, (scope, level, flags)) in [(0, 0, 1), (1, 0, 0), (1, 1, 0), (0, 1, 0)].into_iter().enumerate()
    {
        builder.section(id(scope, level, flags), pieces(index as u8)).expect("legal");
    }
    for (kind, data) in [(7, vec![1, 2, 3, 4, 5]), (0x1234, Vec::new())] {
        builder.extension(&Extension { kind, required: false, data }).expect("legal");
    }
    builder.finish().expect("legal")
}

/// `two_levels` as a later minor version may write it: a reader skips the extensions and reads the rest.
fn later_minor() -> Vec<u8> {
    let mut object = two_levels();
    object[5] = 200;
    seal(&mut object);
    object
}

/// Damage to `two_levels`.
type Damage = fn(&mut Vec<u8>);

/// 300 tokens: 19 block hashes.
const DIRECTORY_AT: usize = HEADER_BYTES + 19 * 8;
const PIECES_AT: usize = DIRECTORY_AT + 4 * 6;
const EXTENSIONS_AT: usize = PIECES_AT + 4 * 2 * 8;
/// One extension of 5 bytes, one of none.
const TOKENS_AT: usize = EXTENSIONS_AT + 8 + 5 + 8;

/// Makes the checksums of header and directory fit again, so that the rule behind them is what fails.
fn seal(object: &mut [u8]) {
    let directory = crc32c::crc32c(&object[HEADER_BYTES..TOKENS_AT]);
    object[168..172].copy_from_slice(&directory.to_le_bytes());
    let header = crc32c::crc32c(&object[..252]);
    object[252..256].copy_from_slice(&header.to_le_bytes());
}

fn bad() -> Vec<(&'static str, Damage, &'static str)> {
    fn sealed(object: &mut [u8], at: usize, byte: u8) {
        object[at] = byte;
        seal(object);
    }
    vec![
        ("magic", |o| o[0] = b'Z', "Magic"),
        ("version-major", |o| sealed(o, 4, 9), "Version"),
        ("version-1-0", |o| sealed(o, 5, 0), "Version"),
        ("header-bit", |o| o[20] ^= 1, "Checksum"),
        ("flag-reserved", |o| sealed(o, 8, 3), "Field"),
        ("preceding-token-without-flag", |o| sealed(o, 8, 0), "Field"),
        (
            "no-tokens",
            |o| {
                o[12..16].fill(0);
                seal(o);
            },
            "Field",
        ),
        ("span-count", |o| sealed(o, 160, 3), "Field"),
        ("level-count-zero", |o| sealed(o, 162, 0), "Field"),
        ("level-count-nine", |o| sealed(o, 162, 9), "Field"),
        ("exact-tokens", |o| sealed(o, 163, 17), "Field"),
        ("kl-negative", |o| sealed(o, 159, 0xbc), "Field"),
        (
            "kl-nan",
            |o| {
                o[156..160].copy_from_slice(&f32::NAN.to_le_bytes());
                seal(o);
            },
            "Field",
        ),
        ("header-reserved", |o| sealed(o, 188, 1), "Field"),
        ("header-reserved-end", |o| sealed(o, 251, 1), "Field"),
        ("extensions-too-long", |o| sealed(o, 186, 1), "Field"),
        ("extension-required", |o| sealed(o, EXTENSIONS_AT + 2, 1), "Extension"),
        ("extension-flags", |o| sealed(o, EXTENSIONS_AT + 2, 2), "Field"),
        ("extension-reserved", |o| sealed(o, EXTENSIONS_AT + 3, 1), "Field"),
        (
            "extension-twice",
            |o| {
                o[EXTENSIONS_AT + 14] = 0;
                sealed(o, EXTENSIONS_AT + 13, 7);
            },
            "Field",
        ),
        ("extension-past-its-end", |o| sealed(o, EXTENSIONS_AT + 17, 1), "Field"),
        ("extension-cut", |o| sealed(o, EXTENSIONS_AT + 4, 6), "Field"),
        ("extension-bit", |o| o[EXTENSIONS_AT + 9] ^= 1, "Checksum"),
        // Of three levels, what the encoder measured of one.
        (
            "measured-levels",
            |o| {
                o[162] = 3;
                o[EXTENSIONS_AT] = 1;
                o[EXTENSIONS_AT + 10..EXTENSIONS_AT + 12].copy_from_slice(&[1, 0]);
                seal(o);
            },
            "Field",
        ),
        (
            "object-bytes",
            |o| {
                o[176] ^= 1;
                seal(o);
            },
            "Field",
        ),
        (
            "position-overflow",
            |o| {
                o[144..152].fill(0xff);
                seal(o);
            },
            "Field",
        ),
        ("block-hash-bit", |o| o[HEADER_BYTES + 8] ^= 4, "Checksum"),
        ("directory-bit", |o| o[DIRECTORY_AT] ^= 1, "Checksum"),
        ("section-level-too-high", |o| sealed(o, DIRECTORY_AT + 3 * 6 + 3, 2), "SectionOrder"),
        ("section-order", |o| sealed(o, DIRECTORY_AT + 3, 1), "SectionOrder"),
        ("section-twice", |o| sealed(o, DIRECTORY_AT + 6, 0), "SectionOrder"),
        ("section-reserved", |o| sealed(o, DIRECTORY_AT + 5, 1), "Field"),
        ("piece-too-long", |o| sealed(o, PIECES_AT + 3, 5), "Field"),
        ("absent-piece-with-crc", |o| sealed(o, PIECES_AT + 3 * 8 + 4, 1), "Field"),
        ("tokens-bit", |o| o[TOKENS_AT + 9] ^= 1, "Checksum"),
        (
            "tokens-no-frame",
            |o| {
                let bytes = u32::from_le_bytes([o[164], o[165], o[166], o[167]]) as usize;
                o[TOKENS_AT] ^= 1;
                let crc = crc32c::crc32c(&o[TOKENS_AT..TOKENS_AT + bytes]);
                o[172..176].copy_from_slice(&crc.to_le_bytes());
                seal(o);
            },
            "Tokens",
        ),
        (
            "piece-bit",
            |o| {
                let last = o.len() - 1;
                o[last] ^= 1;
            },
            "Checksum",
        ),
        ("truncated", |o| o.truncate(o.len() - 1), "Truncated"),
        ("truncated-head", |o| o.truncate(HEADER_BYTES + 8), "Truncated"),
        ("trailing", |o| o.push(0), "Trailing"),
    ]
}

pub(crate) fn write(files: &mut Files) {
    let mut index = String::new();
    for (name, object) in
        [("smallest", smallest()), ("two-levels", two_levels()), ("later-minor", later_minor())]
    {
        index += &format!("{name}.kvc {}\n", describe(&Head::parse(&object).expect("good")));
        files.insert(format!("ok/{name}.kvc"), object);
    }
    files.insert("ok/index.txt".into(), index.into_bytes());
    let mut index = String::new();
    for (name, damage, error) in bad() {
        let mut object = two_levels();
        damage(&mut object);
        index += &format!("{name}.kvc {error}\n");
        files.insert(format!("err/{name}.kvc"), object);
    }
    files.insert("err/index.txt".into(), index.into_bytes());
}

/// What a reader finds: tokens (count and CRC), sections, pieces.
fn describe(head: &Head) -> String {
    let tokens: Vec<u8> = head.tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    let sections = head.sections().iter();
    let sections: Vec<_> =
        sections.map(|s| format!("{}.{}.{}.{}", s.scope, s.band, s.level, s.flags)).collect();
    let pieces: Vec<_> = head
        .pieces()
        .map(|(s, t, e)| format!("{s}.{t}@{}+{}", e.range.start, e.range.end - e.range.start))
        .collect();
    let extensions: Vec<_> = head.extensions.iter().map(|e| format!("{}+{}", e.kind, e.data.len())).collect();
    let link = crc32c::crc32c(&[*head.header.chain_key.as_bytes(), head.header.parent_hash].concat());
    format!(
        "link_crc32c={:08x} extensions={} tokens={} tokens_crc32c={:08x} preceding={} first={} exact={} kl={} head={} sections={} pieces={}",
        link,
        extensions.join(","),
        head.tokens.len(),
        crc32c::crc32c(&tokens),
        head.header.preceding_token.map_or("none".into(), |t| t.to_string()),
        head.header.first_position,
        head.header.exact_tokens,
        head.header.kl_beneath,
        head.header.head_bytes(),
        sections.join(","),
        pieces.join(","),
    )
}

pub(crate) fn read(files: &Files) {
    let lines = |name: &str| {
        str::from_utf8(&files[name]).expect("text").lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let verify = |object: &[u8]| {
        let mut verifier = ObjectVerifier::new();
        verifier.push(object)?;
        verifier.finish()
    };
    for line in lines("ok/index.txt") {
        let (name, expected) = line.split_once(' ').expect("name and description");
        let head = verify(&files[&format!("ok/{name}")]).expect("good");
        head.verify_chain().expect("good");
        assert_eq!(describe(&head), expected, "{name}");
    }
    for line in lines("err/index.txt") {
        let (name, expected) = line.split_once(' ').expect("name and error");
        let error = verify(&files[&format!("err/{name}")]).expect_err(name);
        assert_eq!(variant(&error), expected, "{name}: {error}");
    }
}
