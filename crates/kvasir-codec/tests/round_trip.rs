//! What goes in comes back, better by every level, whatever the shape and the values.

mod common;
#[path = "common/typed_rows.rs"]
mod typed_rows;

use common::{Noise, cache, error, setups};
use kvasir_codec::{Bf16Buffer, ChunkDecoder, CpuDecoder, DecodePath, KvBuffer};
use kvasir_container::Head;
use kvasir_types::{ChainLink, Level, Loss, Plane};
use proptest::prelude::*;
use typed_rows::{DTYPES, TypedRows};

#[test]
fn error_falls_with_every_level_and_the_finest_is_good() {
    for setup in setups() {
        let tokens = Noise::new(77).tokens(600);
        let kv = cache(&setup.spec, &tokens, 1_234);
        let object = setup.encode(&tokens, 0, &kv);
        let head = Head::parse(&object).expect("parses");
        let mut before = (f64::INFINITY, 0);
        for level in 0..setup.profile.level_count() {
            let loss = error(&kv, &setup.decode(&object, level).expect("decodes"));
            let bytes = head.level_bytes(Level(level as u8)).expect("exists");
            assert!(loss < before.0 && bytes > before.1, "level {level}: {loss} {bytes} after {before:?}");
            before = (loss, bytes);
        }
        let recipe = &setup.profile.training().recipe;
        assert!(before.0 < 0.05, "{recipe}: finest level loses {}", before.0);
        assert_eq!(before.1, object.len() as u64);
    }
}

/// Of every recipe at every level, with one thread and with several; some spans are exact in part, some in whole.
#[test]
fn rows_in_every_type_are_the_f32_rows_rounded() {
    for setup in setups() {
        let text = Noise::new(21).tokens(600);
        let mut kv = cache(&setup.spec, &text, 22);
        kv.rows_mut(3, Plane::K, 0)[12 * 300 + 2] = f32::NAN;
        // past the largest of e4m3, and past that of f16
        kv.rows_mut(4, Plane::V, 1)[..2].copy_from_slice(&[1e3, 1e6]);
        let object = setup.encode(&text, 0, &kv);
        let head = Head::parse(&object).expect("parses");
        for level in 0..setup.profile.level_count() {
            let whole = setup.decode(&object, level).expect("decodes");
            for (dtype, threads) in DTYPES.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 3)]) {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
                let mut rows = TypedRows::new(dtype, &setup.spec, 600);
                let decode = || setup.decoder.decode(&head, &object, Level(level as u8), 0..600, &mut rows);
                pool.install(decode).expect("decodes");
                let recipe = &setup.profile.training().recipe;
                assert!(rows.holds(&whole), "{dtype:?} of {recipe} at level {level}, {threads} threads");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Rows of any type are the f32 rows rounded, on every path, with one thread and with several; the encoders agree too.
    #[test]
    fn every_path_gives_the_same_rows_in_every_type(
        recipe in 0usize..4, tokens in 1usize..400, first in prop::sample::select(vec![0u64, 5, 1 << 40]),
        level in 0usize..4, cut in any::<(prop::sample::Index, prop::sample::Index)>(), seed in any::<u64>(),
    ) {
        let setup = &setups()[recipe];
        let at = Level(level.min(setup.profile.level_count() - 1) as u8);
        let text = Noise::new(seed).tokens(tokens);
        let kv = cache(&setup.spec, &text, seed);
        let object = setup.encode(&text, first, &kv);
        let head = Head::parse(&object).expect("parses");
        let (a, b) = (cut.0.index(tokens + 1), cut.1.index(tokens + 1));
        let range = a.min(b)..a.max(b);
        for path in DecodePath::available() {
            let decoder = setup.decoder.clone().with_path(path);
            let mut whole = KvBuffer::new(&setup.spec, tokens);
            decoder.decode(&head, &object, at, range.clone(), &mut whole).expect("decodes");
            let rounded: Vec<u16> = whole.as_slice().iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect();
            for threads in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
                let mut rows = Bf16Buffer::new(&setup.spec, tokens);
                pool.install(|| decoder.decode(&head, &object, at, range.clone(), &mut rows)).expect("decodes");
                let rows: Vec<u16> = rows.as_slice().iter().map(|x| x.to_bits()).collect();
                prop_assert!(rows == rounded, "{} with {threads} threads", path.name());
                for dtype in DTYPES {
                    let mut rows = TypedRows::new(dtype, &setup.spec, tokens);
                    pool.install(|| decoder.decode(&head, &object, at, range.clone(), &mut rows)).expect("decodes");
                    prop_assert!(rows.holds(&whole), "{dtype:?} by {} with {threads} threads", path.name());
                }
            }
        }
    }

    /// Any length and position, at any level, from exactly the bytes of that level; any token range is the
    /// same range of the whole.
    #[test]
    fn prefixes_and_ranges_agree_with_the_whole(
        recipe in 0usize..4, tokens in 1usize..700, first in prop::sample::select(vec![0u64, 2, 256, 1 << 40]),
        level in 0usize..4, cut in any::<(prop::sample::Index, prop::sample::Index)>(), seed in any::<u64>(),
    ) {
        let setup = &setups()[recipe];
        let level = level.min(setup.profile.level_count() - 1);
        let text = Noise::new(seed).tokens(tokens);
        let kv = cache(&setup.spec, &text, seed);
        let object = setup.encode(&text, first, &kv);
        prop_assert_eq!(&object, &setup.encode(&text, first, &kv));
        let head = Head::parse(&object).expect("parses");
        let whole = setup.decode(&object, level).expect("decodes");
        let at = Level(level as u8);
        let bytes = head.level_bytes(at).expect("exists") as usize;
        let mut prefix = KvBuffer::new(&setup.spec, tokens);
        setup.decoder.decode(&head, &object[..bytes], at, 0..tokens, &mut prefix).expect("decodes");
        prop_assert_eq!(&prefix, &whole);

        let (a, b) = (cut.0.index(tokens + 1), cut.1.index(tokens + 1));
        let range = a.min(b)..a.max(b);
        let mut part = KvBuffer::new(&setup.spec, tokens);
        setup.decoder.decode(&head, &object, at, range.clone(), &mut part).expect("decodes");
        prop_assert_eq!(part.slice(range.clone()), whole.slice(range.clone()));
        let outside = part.slice(0..range.start).as_slice().iter().chain(part.slice(range.end..tokens).as_slice())
            .all(|v| *v == 0.0);
        prop_assert!(outside, "rows outside the range were written");
    }

    /// Values no profile was trained for: constants, huge, tiny, denormal, non-finite ones.
    #[test]
    fn any_values_survive(
        recipe in 0usize..4, tokens in 1usize..300,
        value in prop::sample::select(vec![0.0f32, 1.0, -3.5, 1e30, -3e38, 1e-40, f32::NAN, f32::INFINITY]),
        at in any::<prop::sample::Index>(), everywhere in any::<bool>(), seed in any::<u64>(),
    ) {
        let setup = &setups()[recipe];
        let text = Noise::new(seed).tokens(tokens);
        let mut kv = cache(&setup.spec, &text, seed);
        if everywhere {
            kv.as_mut_slice().fill(value);
        } else {
            let index = at.index(kv.as_slice().len());
            kv.as_mut_slice()[index] = value;
        }
        let object = setup.encode(&text, 0, &kv);
        let top = setup.profile.level_count() - 1;
        let decoded = setup.decode(&object, top).expect("decodes");
        for (x, y) in kv.as_slice().iter().zip(decoded.as_slice()) {
            prop_assert!(x.is_finite() == y.is_finite() || x.abs() > 3.3e38, "{x} became {y}");
            prop_assert!(!x.is_nan() || y.is_nan(), "{x} became {y}");
        }
    }
}

#[test]
fn spans_with_non_finite_values_are_exact_and_reported() {
    for setup in setups() {
        let text = Noise::new(5).tokens(520);
        let mut kv = cache(&setup.spec, &text, 6);
        kv.rows_mut(3, Plane::K, 0)[12 * 300 + 2] = f32::NAN;
        let input = kvasir_codec::ChunkInput {
            tokens: &text,
            preceding_token: None,
            first_position: 0,
            link: ChainLink::first([0; 32].into()),
            beneath: Loss::NONE,
            kv: &kv,
        };
        let (object, report) = setup.encoder.encode_with_report(&input).expect("encodes");
        assert_eq!(report.exact_spans.len(), 1, "one scope of one span");
        assert_eq!(report.exact_spans[0].1, 1, "tokens 256 to 511");
        let decoded = setup.decode(&object, 0).expect("decodes");
        let rows = &kv.rows(3, Plane::K, 0)[12 * 256..12 * 512];
        for (x, y) in rows.iter().zip(&decoded.rows(3, Plane::K, 0)[12 * 256..12 * 512]) {
            let bf16 = half::bf16::from_f32(*x).to_f32();
            assert!(bf16 == *y || (bf16.is_nan() && y.is_nan()), "{x} {y}");
        }
    }
}

#[test]
fn sinks_are_exact_at_the_coarsest_level() {
    let setup = &setups()[2];
    let text = Noise::new(5).tokens(40);
    let kv = cache(&setup.spec, &text, 6);
    let decoded = setup.decode(&setup.encode(&text, 1, &kv), 0).expect("decodes");
    let exact: Vec<f32> =
        kv.slice(0..3).as_slice().iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect();
    assert_eq!(decoded.slice(0..3).as_slice(), exact, "positions 1 to 3 are among the first 4");
    assert_ne!(decoded.slice(3..4), kv.slice(3..4));
}

#[test]
fn a_scope_decodes_from_its_sections_alone() {
    let setup = &setups()[0];
    let text = Noise::new(15).tokens(300);
    let kv = cache(&setup.spec, &text, 16);
    let object = setup.encode(&text, 0, &kv);
    let head = Head::parse(&object).expect("parses");
    let whole = setup.decode(&object, 2).expect("decodes");
    // Every byte that belongs to another scope is destroyed.
    let scope = 1;
    let mut damaged = vec![0xaa; object.len()];
    for (section, _, entry) in head.pieces() {
        if usize::from(head.sections()[section].scope) == scope {
            let range = entry.range.start as usize..entry.range.end as usize;
            damaged[range.clone()].copy_from_slice(&object[range]);
        }
    }
    let mut kv = KvBuffer::new(&setup.spec, 300);
    let decoder: &CpuDecoder = &setup.decoder;
    decoder.decode_scopes(&head, &damaged, &[(scope, Level(2))], 0..300, &mut kv).expect("decodes");
    // Scope 1 of the direct recipe: V of layers 0 to 3.
    for layer in [0, 1, 3] {
        assert_eq!(kv.rows(layer, Plane::V, 0), whole.rows(layer, Plane::V, 0));
        assert!(kv.rows(layer, Plane::K, 0).iter().all(|v| *v == 0.0));
    }
}
