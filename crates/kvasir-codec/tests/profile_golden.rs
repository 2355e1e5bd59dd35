//! Golden profiles, good and bad, and an object coded with one: files of this format version stay readable, and
//! what the encoder writes for a direct profile does not change by a bit.
//!
//! Training is not golden (its linear algebra differs by machine); reading, writing and coding are.

mod common;

use std::{fs, path::PathBuf};

use common::{Setup, cache, contexts};
use kvasir_codec::{DecodeError, KvBuffer, Profile, ProfileError, limits::NOTE_BYTES_MAX, starter};
use kvasir_container::{HEADER_BYTES, Head};
use kvasir_train::{BasisRecipe, Recipe, pack, train};
use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Pairing, Plane, Reuse, Rope};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/profile")
}

fn stored(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).expect("the file is in the tree")
}

fn tiny_spec() -> ModelSpec {
    ModelSpec {
        weights: "golden/tiny".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: vec![Rope::plain(Pairing::Half, 4, 10_000.0)],
        layers: vec![LayerKv { layout: KvLayout::Gqa { kv_heads: 1, head_dim: 4 }, rope: Some(0) }; 2],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

fn tokens() -> Vec<u32> {
    common::Noise::new(3).tokens(300)
}

/// Objects whose rows are golden to the last bit, with the position of their first token.
const EXACT_ROWS: [(&str, u64); 5] =
    [("direct", 512), ("exact", 512), ("exact-only", 512), ("anchors", 0), ("starter", 512)];

/// The cache of one of them. No quantiser takes what `anchors` has in its second span.
fn kv_of(name: &str, spec: &ModelSpec) -> KvBuffer {
    let mut kv = kv(spec);
    if name == "anchors" {
        kv.rows_mut(1, Plane::V, 0)[4 * 280] = f32::INFINITY;
    }
    kv
}

/// The cache, rounded so that it is the same whatever the order of its sums.
fn kv(spec: &ModelSpec) -> KvBuffer {
    let mut kv = cache(spec, &tokens(), 4);
    kv.as_mut_slice().iter_mut().for_each(|x| *x = (*x * 64.0).round() / 64.0);
    kv
}

fn crc_of_rows(kv: &KvBuffer) -> String {
    let bytes: Vec<u8> = kv.as_slice().iter().flat_map(|x| x.to_le_bytes()).collect();
    format!("{:08x}", crc32c::crc32c(&bytes))
}

/// Damage to `basis.kvp` and the error it has to give. Offsets are those of FORMAT.md §6.
type Damage = (&'static str, fn(&mut Vec<u8>), &'static str);

fn damages() -> Vec<Damage> {
    vec![
        ("magic.kvp", |p| p[0] = b'k', "Magic"),
        ("version.kvp", |p| p[8] = 1, "Version"),
        ("truncated.kvp", |p| p.truncate(p.len() - 1), "Truncated"),
        ("trailing.kvp", |p| p.push(0), "Trailing"),
        ("bit.kvp", |p| p[100] ^= 1, "Checksum"),
        ("no-levels.kvp", |p| seal(p, 10, &[0]), "Invalid"),
        ("nine-levels.kvp", |p| seal(p, 10, &[9]), "Invalid"),
        ("exact-tokens.kvp", |p| seal(p, 11, &[17]), "Invalid"),
        ("no-scopes.kvp", |p| seal(p, 12, &[0; 4]), "Invalid"),
        ("too-many-scopes.kvp", |p| seal(p, 12, &[0xff; 4]), "Invalid"),
        ("one-scope-more.kvp", |p| seal(p, 12, &[2, 0, 0, 0]), "Truncated"),
        // the first scope's `exact` lies wherever texts and tables end: a version says for all of them
        ("exact-version-of-none.kvp", |p| seal(p, 8, &[3]), "Invalid"),
        ("recipe-longer-than-file.kvp", |p| seal(p, 56, &[0xff, 0x0f]), "Truncated"),
    ]
}

/// Damage to the first piece of the exact level of `exact-only.kvc`, all of which is found by decoding it.
type PieceDamage = (&'static str, fn(&mut [u8]));

fn piece_damages() -> Vec<PieceDamage> {
    fn coded(piece: &[u8]) -> usize {
        u32::from_le_bytes(piece[..4].try_into().expect("4 bytes")) as usize
    }
    vec![
        ("exact-coded-too-long.kvc", |piece| piece[..4].fill(0xff)),
        // What belongs to the coded part begins the raw bits: there are too many.
        ("exact-coded-absent.kvc", |piece| piece[..4].fill(0)),
        // Eight zero bits and a long exponent take more bits than there are, or leave some.
        ("exact-raw-zeros.kvc", |piece| {
            let first = 4 + coded(piece);
            piece[first..].fill(0);
        }),
        ("exact-raw-ones.kvc", |piece| {
            let first = 4 + coded(piece);
            piece[first..].fill(0xff);
        }),
    ]
}

/// The object with one piece damaged and its checksums made to fit.
fn with_damaged_piece(object: &[u8], damage: fn(&mut [u8])) -> Vec<u8> {
    let head = Head::parse(object).expect("parses");
    let (mut object, spans) = (object.to_vec(), head.span_count());
    let (section, span, entry) = head.pieces().next().expect("has pieces");
    let range = entry.range.start as usize..entry.range.end as usize;
    damage(&mut object[range.clone()]);
    let entries = HEADER_BYTES + 8 * head.header.block_count() + 6 * head.sections().len();
    let mut crc_at = |at: usize, range: std::ops::Range<usize>| {
        let crc = crc32c::crc32c(&object[range]);
        object[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    };
    crc_at(entries + 8 * (section * spans + span) + 4, range);
    crc_at(168, HEADER_BYTES..entries + 8 * spans * head.sections().len());
    crc_at(252, 0..252);
    object
}

/// Writes bytes and makes the checksum fit again.
fn seal(profile: &mut [u8], at: usize, bytes: &[u8]) {
    profile[at..at + bytes.len()].copy_from_slice(bytes);
    let body = profile.len() - 4;
    let crc = crc32c::crc32c(&profile[..body]);
    profile[body..].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn good_profiles_read_and_write_back_the_same() {
    let versions = [
        ("direct.kvp", 2),
        ("basis.kvp", 2),
        ("packed.kvp", 2),
        ("exact.kvp", 3),
        ("exact-only.kvp", 3),
        ("anchors.kvp", 2),
        ("starter.kvp", 4),
    ];
    for (name, version) in versions {
        let bytes = stored(name);
        assert_eq!(bytes[8..10], [version, 0]);
        let profile = Profile::from_bytes(&bytes).expect("reads");
        assert_eq!(profile.to_bytes(), bytes, "{name}");
        profile.check_model(&tiny_spec()).expect("is of the tiny model");
        assert_eq!(profile.hash(), kvasir_types::ProfileHash::of(&bytes));
    }
}

#[test]
fn bad_profiles_are_refused_for_their_reason() {
    for (name, damage, expected) in damages() {
        let mut bytes = stored("basis.kvp");
        damage(&mut bytes);
        assert_eq!(bytes, stored(name), "{name} is `basis.kvp` with that damage");
        let error = format!("{:?}", Profile::from_bytes(&bytes).expect_err(name));
        assert!(error.starts_with(expected), "{name}: {error}");
    }
}

#[test]
fn a_profile_with_an_exact_level_is_of_version_3() {
    let mut bytes = stored("exact.kvp");
    assert_eq!(bytes[8], 3);
    seal(&mut bytes, 8, &[2]);
    assert_eq!(bytes, stored("exact-of-version-2.kvp"));
    let error = format!("{:?}", Profile::from_bytes(&bytes).expect_err("was another format"));
    assert!(error.starts_with("Invalid"), "{error}");
}

#[test]
fn a_profile_of_version_4_says_its_powers() {
    let bytes = stored("starter.kvp");
    let profile = Profile::from_bytes(&bytes).expect("reads");
    let powers: Vec<f32> =
        profile.parts().scopes.iter().flat_map(|scope| &scope.members).map(|member| member.power).collect();
    let mut none = bytes.clone();
    for power in powers {
        // Members are {u16, u16, u32, u32, f32 gain, f32 power}: a power stands behind its gain once.
        let at = none.windows(4).position(|four| four == power.to_le_bytes()).expect("it is there");
        seal(&mut none, at, &[0; 4]);
    }
    let error = Profile::from_bytes(&none).expect_err("version 2 without powers is the one form");
    assert!(matches!(error, ProfileError::Invalid { field: "power", .. }), "{error:?}");
}

#[test]
fn texts_are_as_long_as_a_reader_takes() {
    let parts = Profile::from_bytes(&stored("starter.kvp")).expect("reads").parts();
    let with = |recipe: usize, note: usize| {
        let mut parts = parts.clone();
        (parts.training.recipe, parts.training.note) = ("r".repeat(recipe), "n".repeat(note));
        Profile::assemble(parts)
    };
    let longest = with(NOTE_BYTES_MAX, NOTE_BYTES_MAX).expect("the limit");
    assert_eq!(Profile::from_bytes(&longest.to_bytes()).expect("reads").hash(), longest.hash());
    for (recipe, note, field) in [(NOTE_BYTES_MAX + 1, 0, "recipe"), (0, NOTE_BYTES_MAX + 1, "note")] {
        let error = with(recipe, note).expect_err(field);
        assert!(matches!(error, ProfileError::Invalid { field: found, .. } if found == field), "{error}");
    }
}

#[test]
fn bad_pieces_of_the_exact_level_are_refused() {
    let setup = Setup::of(tiny_spec(), Profile::from_bytes(&stored("exact-only.kvp")).expect("reads"));
    for (name, damage) in piece_damages() {
        let object = with_damaged_piece(&stored("exact-only.kvc"), damage);
        assert_eq!(object, stored(name), "{name} is `exact-only.kvc` with that damage");
        let error = setup.decode(&object, 0).expect_err(name);
        assert!(matches!(error, DecodeError::Exact { .. }), "{name}: {error}");
    }
}

#[test]
fn direct_objects_are_byte_for_byte_what_this_build_writes() {
    for (name, position) in EXACT_ROWS {
        let profile = Profile::from_bytes(&stored(&format!("{name}.kvp"))).expect("reads");
        let setup = Setup::of(tiny_spec(), profile);
        let object = setup.encode(&tokens(), position, &kv_of(name, &setup.spec));
        let golden = stored(&format!("{name}.kvc"));
        // zstd versions may compress tokens differently: compare the pieces.
        assert_eq!(pieces(&object), pieces(&golden), "{name}");
        let expected = String::from_utf8(stored(&format!("{name}.rows.txt"))).expect("text");
        assert_eq!(rows(&setup, &golden), expected.trim(), "{name}");
        let measured = |object: &[u8]| Head::parse(object).expect("parses").measured().cloned();
        assert_eq!(measured(&object), measured(&golden), "{name}");
        assert_eq!(measured(&golden).is_some(), name == "starter");
    }
}

#[test]
fn objects_of_bases_decode_to_what_they_did() {
    for name in BASES {
        let profile = Profile::from_bytes(&stored(&format!("{name}.kvp"))).expect("reads");
        let found = sums(&Setup::of(tiny_spec(), profile), &stored(&format!("{name}.kvc")));
        let expected = String::from_utf8(stored(&format!("{name}.sums.txt"))).expect("text");
        let numbers =
            |text: &str| text.split_whitespace().map(|n| n.parse().expect("a number")).collect::<Vec<f64>>();
        let (found, expected) = (numbers(&found), numbers(&expected));
        assert_eq!(found.len(), expected.len(), "{name}");
        let close = |(x, y): (&f64, &f64)| (x - y).abs() <= 1e-4 * (1.0 + y.abs());
        assert!(found.iter().zip(&expected).all(close), "{name}: {found:?} {expected:?}");
    }
}

/// Objects whose rows are golden but for the order of their sums.
const BASES: [&str; 2] = ["basis", "packed"];

/// Of each head and element the sum over all tokens, and the sum of all squares; a line a level.
fn sums(setup: &Setup, object: &[u8]) -> String {
    let of_level = |level| {
        let kv = setup.decode(object, level).expect("decodes");
        let heads = (0..2).flat_map(|layer| Plane::ALL.map(|plane| kv.rows(layer, plane, 0)));
        let sum = |rows: &[f32], i: usize| rows.iter().skip(i).step_by(4).map(|x| f64::from(*x)).sum::<f64>();
        let mut line: Vec<f64> = heads.flat_map(|rows| (0..4).map(move |i| sum(rows, i))).collect();
        line.push(kv.as_slice().iter().map(|x| f64::from(*x).powi(2)).sum());
        line.iter().map(|x| format!("{x:.6}")).collect::<Vec<_>>().join(" ")
    };
    (0..setup.profile.level_count()).map(of_level).collect::<Vec<_>>().join("\n")
}

/// The CRC of all rows of an object, a line a level.
fn rows(setup: &Setup, object: &[u8]) -> String {
    let of_level = |level| crc_of_rows(&setup.decode(object, level).expect("decodes"));
    (0..setup.profile.level_count()).map(of_level).collect::<Vec<_>>().join("\n")
}

fn pieces(object: &[u8]) -> Vec<Vec<u8>> {
    let head = Head::parse(object).expect("parses");
    let bytes = |range: std::ops::Range<u64>| object[range.start as usize..range.end as usize].to_vec();
    head.pieces().map(|(_, _, entry)| bytes(entry.range)).collect()
}

#[test]
#[ignore = "writes new golden profiles: only after a change of the format's version"]
fn regenerate() {
    fs::create_dir_all(folder()).expect("writable");
    let write = |name: &str, bytes: &[u8]| fs::write(folder().join(name), bytes).expect("writable");
    let spec = tiny_spec();
    let mut data = contexts(&spec, 5, 300);
    // An exact level wants what the cache's type holds.
    let held = |x: &mut f32| *x = half::f16::from_f32(*x).to_f32();
    data.iter_mut().for_each(|context| context.kv.as_mut_slice().iter_mut().for_each(held));
    let recipe = Recipe::Basis(BasisRecipe { token_factors: [3, 2], ..BasisRecipe::default() });
    // Of the versions before 4: they stay readable.
    let train = |recipe: &Recipe| {
        let profile = train(&spec, &data, recipe, 0.01, &mut |_, _| {}).expect("trains");
        let mut parts = profile.parts();
        parts.scopes.iter_mut().flat_map(|scope| &mut scope.members).for_each(|member| member.power = 0.0);
        Profile::assemble(parts).expect("as it was")
    };
    let direct = train(&Recipe::Direct);
    let basis = train(&recipe).to_bytes();
    let packed = pack(&Profile::from_bytes(&basis).expect("was written"), 3_000, 4).expect("packs");
    write("packed.kvp", &packed.to_bytes());
    for (name, profile) in BASES.into_iter().zip([Profile::from_bytes(&basis).expect("was written"), packed])
    {
        let setup = Setup::of(spec.clone(), profile);
        let object = setup.encode(&tokens(), 512, &kv(&setup.spec));
        write(&format!("{name}.kvc"), &object);
        write(&format!("{name}.sums.txt"), sums(&setup, &object).as_bytes());
    }
    let rope = &spec.ropes[0];
    let freqs: Vec<String> = rope.freqs.iter().map(u64::to_string).collect();
    write(
        "model.txt",
        format!("half {} {} {}\n", rope.offset, rope.attention_factor, freqs.join(" ")).as_bytes(),
    );
    write("direct.kvp", &direct.to_bytes());
    write("basis.kvp", &basis);
    for (name, damage, _) in damages() {
        let mut bytes = basis.clone();
        damage(&mut bytes);
        write(name, &bytes);
    }
    let exact = train(&Recipe::DirectExact);
    write("exact.kvp", &exact.to_bytes());
    let mut old = exact.to_bytes();
    seal(&mut old, 8, &[2]);
    write("exact-of-version-2.kvp", &old);
    let only = train(&Recipe::Exact);
    write("exact-only.kvp", &only.to_bytes());
    let anchors = train(&Recipe::CacheGen).with_exact_tokens(3).expect("few");
    write("anchors.kvp", &anchors.to_bytes());
    let starter = starter(&spec, &tokens(), 0, &kv(&spec)).expect("a cache like any");
    write("starter.kvp", &starter.to_bytes());
    for ((name, position), profile) in EXACT_ROWS.into_iter().zip([direct, exact, only, anchors, starter]) {
        let setup = Setup::of(spec.clone(), profile);
        let object = setup.encode(&tokens(), position, &kv_of(name, &setup.spec));
        write(&format!("{name}.kvc"), &object);
        write(&format!("{name}.rows.txt"), rows(&setup, &object).as_bytes());
        if name == "exact-only" {
            for (name, damage) in piece_damages() {
                write(name, &with_damaged_piece(&object, damage));
            }
        }
    }
}
