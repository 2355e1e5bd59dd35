//! Every truncation and every single-byte corruption of an object is an error, never other numbers; and every
//! misuse says what to do.

mod common;

use common::{Noise, Setup, cache, contexts, mixed_spec, setups};
use kvasir_codec::{
    ChunkDecoder, ChunkEncoder, ChunkInput, CpuDecoder, CpuEncoder, DecodeError, EncodeError, KvBuffer,
    Profile, ProfileError,
};
use kvasir_container::{ContainerError, HEADER_BYTES, Head};
use kvasir_train::{BasisRecipe, Recipe, TrainError, TrainingContext, train};
use kvasir_types::{ChainLink, KvDtype, Level, Loss, ModelSpec, Plane};
use proptest::prelude::*;

fn small_object(setup: &Setup) -> Vec<u8> {
    let text = Noise::new(1).tokens(20);
    setup.encode(&text, 0, &cache(&setup.spec, &text, 2))
}

#[test]
fn every_single_byte_corruption_is_detected() {
    for setup in setups() {
        let mut object = small_object(setup);
        let top = setup.profile.level_count() - 1;
        assert!(setup.decode(&object, top).is_ok());
        for at in 0..object.len() {
            for mask in [0x01, 0x80, 0xff] {
                object[at] ^= mask;
                assert!(setup.decode(&object, top).is_err(), "byte {at} xor {mask:02x} of {}", object.len());
                object[at] ^= mask;
            }
        }
    }
}

#[test]
fn every_truncation_is_detected() {
    for setup in setups() {
        let object = small_object(setup);
        let top = setup.profile.level_count() - 1;
        for length in 0..object.len() {
            match setup.decode(&object[..length], top) {
                Err(DecodeError::Short { needed, found, .. }) => {
                    assert_eq!((needed, found), (object.len() as u64, length as u64));
                }
                Err(DecodeError::Container(_)) => {}
                other => panic!("{length} of {} bytes: {other:?}", object.len()),
            }
        }
    }
}

#[test]
fn nothing_is_written_from_an_object_that_is_short() {
    let setup = &setups()[0];
    let text = Noise::new(1).tokens(600);
    let object = setup.encode(&text, 0, &cache(&setup.spec, &text, 2));
    let head = Head::parse(&object).expect("parses");
    let mut kv = KvBuffer::new(&setup.spec, 600);
    let cut = &object[..object.len() - 1];
    assert!(setup.decoder.decode(&head, cut, Level(2), 0..600, &mut kv).is_err());
    assert!(kv.as_slice().iter().all(|v| *v == 0.0));
}

proptest! {
    /// A piece that is hostile *and* has a valid checksum: an error or numbers, no panic.
    #[test]
    fn resealed_damage_never_panics(
        recipe in 0usize..4, seed in any::<u64>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let setup = &setups()[recipe];
        let text = Noise::new(seed).tokens(24);
        let mut object = setup.encode(&text, 0, &cache(&setup.spec, &text, seed));
        let head = Head::parse(&object).expect("parses");
        let first = head.header.head_bytes() as usize;
        for (at, byte) in damage {
            let index = first + at.index(object.len() - first);
            object[index] = byte;
        }
        reseal(&head, &mut object);
        for level in 0..setup.profile.level_count() {
            let _ = setup.decode(&object, level);
        }
    }

    #[test]
    fn hostile_profiles_never_panic(
        recipe in 0usize..4, damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = setups()[recipe].profile.to_bytes();
        for (at, byte) in damage {
            let index = at.index(bytes.len() - 4);
            bytes[index] = byte;
        }
        let body = bytes.len() - 4;
        let crc = crc32c::crc32c(&bytes[..body]);
        bytes[body..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(profile) = Profile::from_bytes(&bytes)
            && profile.check_model(&setups()[recipe].spec).is_ok()
        {
            let setup = Setup::of((*setups()[recipe].spec).clone(), profile);
            let object = small_object(&setup);
            setup.decode(&object, 0).expect("a valid profile decodes what it encoded");
        }
    }
}

/// Makes the checksums of pieces, directory and header fit again.
fn reseal(head: &Head, object: &mut [u8]) {
    let blocks = head.header.block_count() * 8;
    let sections = head.sections().len();
    let entries = HEADER_BYTES + blocks + sections * 6;
    let spans = head.span_count();
    for (section, span, entry) in head.pieces() {
        let crc = crc32c::crc32c(&object[entry.range.start as usize..entry.range.end as usize]);
        let at = entries + (section * spans + span) * 8 + 4;
        object[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    let directory = crc32c::crc32c(&object[HEADER_BYTES..entries + sections * spans * 8]);
    object[168..172].copy_from_slice(&directory.to_le_bytes());
    let header = crc32c::crc32c(&object[..252]);
    object[252..256].copy_from_slice(&header.to_le_bytes());
}

#[test]
fn misuse_says_what_to_do() {
    let (setup, other) = (&setups()[0], &setups()[2]);
    let object = small_object(setup);
    let head = Head::parse(&object).expect("parses");
    let mut kv = KvBuffer::new(&setup.spec, 20);
    let foreign = other.decoder.decode(&head, &object, Level(0), 0..20, &mut kv);
    assert!(matches!(foreign, Err(DecodeError::ForeignProfile { .. })), "{foreign:?}");
    let level = setup.decoder.decode(&head, &object, Level(7), 0..20, &mut kv);
    assert!(matches!(level, Err(DecodeError::NoSuchLevel { top: Level(2), .. })), "{level:?}");
    let tokens = setup.decoder.decode(&head, &object, Level(0), 4..21, &mut kv);
    assert!(matches!(tokens, Err(DecodeError::NoSuchTokens { tokens: 20, .. })), "{tokens:?}");

    let elsewhere = ModelSpec { revision: "2".into(), ..(*setup.spec).clone() };
    let refused = CpuEncoder::new(elsewhere.clone().into(), setup.profile.clone()).expect_err("foreign");
    assert!(matches!(refused, ProfileError::ForeignModel { .. }));
    assert!(CpuDecoder::new(elsewhere.into(), setup.profile.clone()).is_err());

    let input = |tokens, kl| ChunkInput {
        tokens,
        preceding_token: None,
        first_position: 0,
        link: ChainLink::first([0; 32].into()),
        beneath: Loss { kl, ..Loss::NONE },
        kv: &kv,
    };
    let none = setup.encoder.encode(&input(&[], 0.0));
    assert!(matches!(none, Err(EncodeError::Tokens { tokens: 0, .. })));
    let nan = setup.encoder.encode(&input(&[1], f64::NAN));
    assert_eq!(nan, Err(EncodeError::KlBeneath));
}

#[test]
fn a_profile_that_takes_more_than_is_allowed_is_refused() {
    for setup in setups() {
        let bytes = setup.profile.to_bytes();
        let macs: u64 = setup.profile.summary().scopes.iter().map(|scope| scope.decode_macs).sum();
        let within = |macs_max| Profile::from_bytes_within(&bytes, macs_max).map(|profile| profile.hash());
        assert_eq!(within(macs), Ok(setup.profile.hash()));
        if let Some(most) = macs.checked_sub(1) {
            let refused = ProfileError::TooMuch { what: "multiply-adds to decode a token", most };
            assert_eq!(within(most), Err(refused));
        }
    }
}

#[test]
fn checksums_are_looked_at_before_pieces_are() {
    let setup = &setups()[2];
    let mut object = small_object(setup);
    let last = object.len() - 1;
    object[last] ^= 1;
    let error = setup.decode(&object, setup.profile.level_count() - 1).expect_err("damaged");
    assert!(matches!(error, DecodeError::Container(ContainerError::Checksum { .. })), "{error:?}");
    assert!(setup.decode(&object, 0).is_ok(), "level 0 does not need the last byte");
}

#[test]
fn training_refuses_what_cannot_work() {
    let spec = mixed_spec(KvDtype::F16);
    let train = |contexts: &[TrainingContext], recipe: Recipe| {
        train(&spec, contexts, &recipe, 0.01, &mut |_, _| {}).expect_err("refused")
    };
    assert!(matches!(train(&[], Recipe::Direct), TrainError::TooFewTokens { found: 0, .. }));
    let mut data = contexts(&spec, 1, 60);
    data[0].tokens.pop();
    let mismatch = TrainError::Mismatch { context: 0, tokens: 59, kv_tokens: 60 };
    assert_eq!(train(&data, Recipe::Direct), mismatch);
    let absurd = BasisRecipe { token_factors: [400, 400], ..BasisRecipe::default() };
    let error = train(&contexts(&spec, 1, 60), Recipe::Basis(absurd));
    assert!(matches!(error, TrainError::Recipe { field: "token_factors", .. }), "{error}");
}

/// Of eight contexts the fifth is held out.
#[test]
fn caches_without_finite_spans_are_too_few() {
    let spec = mixed_spec(KvDtype::F16);
    for recipe in common::recipes().into_iter().chain([Recipe::Exact, Recipe::DirectExact]) {
        for damaged in [0..8, 4..5] {
            let mut data = contexts(&spec, 8, 80);
            data[damaged.clone()].iter_mut().for_each(|c| c.kv.rows_mut(4, Plane::V, 0).fill(f32::NAN));
            let error = train(&spec, &data, &recipe, 0.01, &mut |_, _| {}).expect_err("refused");
            let is_few = matches!(error, TrainError::TooFewTokens { found: 0, .. });
            // Tokens that the recipe stores exactly may have any values.
            let place = format!(" of context {})", damaged.start);
            let text = error.to_string();
            let is_said = text.contains("the first in layer 4, V, token ") && text.ends_with(&place);
            assert!(is_few && is_said, "{damaged:?} under {}: {error}", recipe.name());
        }
    }
}

#[test]
fn constant_and_empty_caches_train() {
    let spec = mixed_spec(KvDtype::F16);
    for recipe in common::recipes() {
        for value in [0.0, 5.5, 1e-42, 6e4] {
            let mut data = contexts(&spec, 2, 80);
            data.iter_mut().for_each(|c| c.kv.as_mut_slice().fill(value));
            let profile = train(&spec, &data, &recipe, 0.01, &mut |_, _| {}).expect("trains");
            let setup = Setup::of(spec.clone(), profile);
            let object = setup.encode(&data[0].tokens, 0, &data[0].kv);
            let top = setup.profile.level_count() - 1;
            let loss = common::error(&data[0].kv, &setup.decode(&object, top).expect("decodes"));
            // Not zero: un-roped keys are no longer constant. Below the smallest scale they count as zero.
            assert!(loss < 0.01 || value < 1e-30, "{value} under {}: {loss}", recipe.name());
        }
    }
}
