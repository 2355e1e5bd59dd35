//! The exact level, bit for bit as on the CPU: every type, above lossy levels and alone, whole, in part and damaged.

use kvasir_codec::{
    ChunkDecoder, DecodeError, KvBuffer, Profile,
    authoring::Predictor,
    container::{Head, SectionId},
};
use kvasir_kernels::Kernel;
use kvasir_train::Recipe;
use kvasir_types::{KvDtype, KvLayout, Level};

use super::{
    chunks::{assert_same, both, decoder},
    common::{Noise, Setup, exact_setup, exact_setup_of, mixed_spec, round_to, typed},
    parts::changed,
};

/// Band of the exact level (FORMAT.md section 6).
const BAND_LOSSLESS: u8 = 3;

/// Values as they come; some near 0, whose exponents are told in unary, and some that nothing predicts.
fn values(setup: &Setup, text: &[u32]) -> KvBuffer {
    let mut kv = typed(&setup.spec, text, 5);
    for (index, value) in kv.as_mut_slice().iter_mut().enumerate() {
        match index % 11 {
            0..3 => *value *= 2f32.powi(-((index % 37) as i32)),
            3 => *value = (*value * 8.0).clamp(-400.0, 400.0),
            4 => *value = -0.0,
            _ => {}
        }
    }
    round_to(setup.spec.kv_dtype, &mut kv);
    kv
}

/// The same coding without a text's predictions, and with tokens that are stored exactly.
fn without_text(setup: &Setup) -> Setup {
    let mut parts = setup.profile.parts();
    parts.exact_tokens = 3;
    parts.scopes.iter_mut().for_each(|scope| scope.predictor = Predictor::Mean);
    Setup::of((*setup.spec).clone(), Profile::assemble(parts).expect("the format allows it"))
}

#[test]
fn every_bit_of_every_type_is_restored() {
    let mut launched = Vec::new();
    for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8E4m3] {
        for recipe in [Recipe::Exact, Recipe::DirectExact] {
            let predicted = exact_setup_of(mixed_spec(dtype), &recipe);
            for setup in [without_text(&predicted), predicted] {
                let (decoder, top) = (decoder(&setup), setup.profile.top_level().index());
                for (tokens, first_position) in [(1, 0), (5, 0), (300, 0), (270, 77_777)] {
                    let text = Noise::new(tokens as u64).tokens(tokens);
                    let kv = values(&setup, &text);
                    let object = setup.encode(&text, first_position, &kv);
                    let (cpu, device) = both(&setup, &decoder, &object, top);
                    let what = format!("{dtype:?}, {recipe:?}, {tokens} tokens at {first_position}");
                    assert_same(&setup, &kv, &cpu, &what);
                    assert_same(&setup, &cpu, &device, &what);
                }
                launched.extend(decoder.device().launched());
            }
        }
    }
    for kernel in [Kernel::Exact, Kernel::Cells, Kernel::Patterns, Kernel::Restore] {
        assert!(launched.contains(&kernel), "{} was never run", kernel.name());
    }
}

/// Heads that are wider than a tile: keys are rotated, and so in one part; values are in two.
#[test]
fn wide_heads_are_restored() {
    let mut spec = mixed_spec(KvDtype::Bf16);
    spec.layers[0].layout = KvLayout::Gqa { kv_heads: 2, head_dim: 140 };
    let setup = exact_setup_of(spec, &Recipe::DirectExact);
    let (decoder, top) = (decoder(&setup), setup.profile.top_level().index());
    let text = Noise::new(7).tokens(40);
    let kv = values(&setup, &text);
    let object = setup.encode(&text, 5, &kv);
    let (cpu, device) = both(&setup, &decoder, &object, top);
    assert_same(&setup, &kv, &cpu, "the CPU");
    assert_same(&setup, &cpu, &device, "the device");
}

/// The raw bits of tokens that nobody wants are read all the same.
#[test]
fn a_part_of_the_tokens_is_decoded() {
    let setup = exact_setup();
    let (decoder, top) = (decoder(&setup), setup.profile.top_level());
    let text = Noise::new(3).tokens(280);
    let object = setup.encode(&text, 10, &values(&setup, &text));
    let head = Head::parse(&object).expect("whole");
    for tokens in [0..1, 37..41, 251..260, 256..280] {
        let [mut cpu, mut device] = [(); 2].map(|()| KvBuffer::new(&setup.spec, text.len()));
        setup.decoder.decode(&head, &object, top, tokens.clone(), &mut cpu).expect("decodes");
        decoder.decode(&head, &object, top, tokens.clone(), &mut device).expect("decodes");
        assert_same(&setup, &cpu, &device, &format!("tokens {tokens:?}"));
    }
}

/// Where all values are what is predicted, nothing is coded, and raw bits are all that there is.
#[test]
fn values_that_are_predicted_are_decoded() {
    let setup = exact_setup();
    let (decoder, top) = (decoder(&setup), setup.profile.top_level().index());
    let text = Noise::new(4).tokens(40);
    let other = setup.encode(&text, 0, &typed(&setup.spec, &text, 5));
    let mut kv = setup.decode(&other, top - 1).expect("decodes");
    round_to(setup.spec.kv_dtype, &mut kv);
    let object = setup.encode(&text, 0, &kv);
    let head = Head::parse(&object).expect("whole");
    let is_not_coded = |(section, id): (usize, &SectionId)| {
        let start = head.piece(section, 0).map_or(0, |piece| piece.range.start as usize);
        id.band == BAND_LOSSLESS && object[start..start + 4] == [0; 4]
    };
    assert!(head.sections().iter().enumerate().any(is_not_coded), "every scope has differences");
    let (cpu, device) = both(&setup, &decoder, &object, top);
    assert_same(&setup, &kv, &cpu, "the CPU");
    assert_same(&setup, &cpu, &device, "the device");
}

/// Whatever becomes of a piece, the device finds what the CPU finds, and decodes what it decodes.
#[test]
fn damage_is_found_as_on_the_cpu() {
    let setup = exact_setup();
    let (decoder, top) = (decoder(&setup), setup.profile.top_level().index());
    let text = Noise::new(6).tokens(40);
    let object = setup.encode(&text, 0, &values(&setup, &text));
    let check = |change: &dyn Fn(&mut Vec<u8>), what: &str| {
        let damaged = changed(&object, |id, piece| {
            if (id.scope, id.band) == (0, BAND_LOSSLESS) {
                change(piece);
            }
        });
        let (head, mut rows) = (Head::parse(&damaged).expect("whole"), KvBuffer::new(&setup.spec, 40));
        let device = decoder.decode(&head, &damaged, Level(top as u8), 0..40, &mut rows);
        let cpu = setup.decode(&damaged, top);
        assert_eq!(device.as_ref().err(), cpu.as_ref().err(), "{what}");
        if let Ok(cpu) = &cpu {
            assert_same(&setup, cpu, &rows, what);
        }
        device
    };
    let malformed: Result<(), DecodeError> = Err(DecodeError::Exact { scope: 0, span: 0 });
    assert_eq!(check(&|_| (), "nothing"), Ok(()));
    assert_eq!(check(&|piece| piece.truncate(3), "no length"), malformed);
    assert_eq!(check(&|piece| piece[..4].fill(0xff), "too long"), malformed);
    assert_eq!(check(&|piece| piece.truncate(piece.len() - 1), "a byte too few"), malformed);
    assert_eq!(check(&|piece| piece.push(0), "a byte too many"), malformed);
    assert_eq!(check(&|piece| piece.truncate(piece.len() * 3 / 4), "cut"), malformed);
    let outcomes: Vec<_> = (0..96usize)
        .map(|n| {
            let flip = |piece: &mut Vec<u8>| {
                let at = n * piece.len() / 96;
                piece[at] ^= 1 << (n % 8);
            };
            check(&flip, &format!("flip {n}"))
        })
        .collect();
    assert!(outcomes.iter().any(Result::is_ok), "a mantissa may have any bits");
    assert!(outcomes.iter().any(Result::is_err), "a stream may not");
}
