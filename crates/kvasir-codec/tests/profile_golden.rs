//! Golden profiles, good and bad, and an object coded with one: files of this format version stay readable, and
//! what the encoder writes for a direct profile does not change by a bit.
//!
//! Training is not golden (its linear algebra differs by machine); reading, writing and coding are.

mod common;

use std::{fs, path::PathBuf};

use common::{Setup, cache, contexts};
use kvasir_codec::{
    KvBuffer, Profile,
    train::{BasisRecipe, Recipe, train},
};
use kvasir_container::Head;
use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Pairing, Reuse, Rope};

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
        ("recipe-longer-than-file.kvp", |p| seal(p, 56, &[0xff, 0x0f]), "Truncated"),
    ]
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
    for name in ["direct.kvp", "basis.kvp"] {
        let bytes = stored(name);
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
fn the_direct_object_is_byte_for_byte_what_this_build_writes() {
    let profile = Profile::from_bytes(&stored("direct.kvp")).expect("reads");
    let setup = Setup::of(tiny_spec(), profile);
    let object = setup.encode(&tokens(), 512, &kv(&setup.spec));
    // zstd versions may compress tokens differently: compare the pieces.
    let (ours, golden) = (pieces(&object), pieces(&stored("direct.kvc")));
    assert_eq!(ours, golden);
    let expected = String::from_utf8(stored("direct.rows.txt")).expect("text");
    let rows: Vec<String> = (0..3)
        .map(|level| crc_of_rows(&setup.decode(&stored("direct.kvc"), level).expect("decodes")))
        .collect();
    assert_eq!(rows.join("\n"), expected.trim());
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
    let data = contexts(&spec, 5, 300);
    let recipe = Recipe::Basis(BasisRecipe { token_factors: [3, 2], ..BasisRecipe::default() });
    let direct = train(&spec, &data, &Recipe::Direct, &mut |_, _| {}).expect("trains");
    let basis = train(&spec, &data, &recipe, &mut |_, _| {}).expect("trains").to_bytes();
    write("direct.kvp", &direct.to_bytes());
    write("basis.kvp", &basis);
    for (name, damage, _) in damages() {
        let mut bytes = basis.clone();
        damage(&mut bytes);
        write(name, &bytes);
    }
    let setup = Setup::of(spec, direct);
    let object = setup.encode(&tokens(), 512, &kv(&setup.spec));
    write("direct.kvc", &object);
    let rows: Vec<String> =
        (0..3).map(|level| crc_of_rows(&setup.decode(&object, level).expect("decodes"))).collect();
    write("direct.rows.txt", rows.join("\n").as_bytes());
}
