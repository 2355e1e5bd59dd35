//! Encoding by kernels against the CPU encoder: the same bytes from the same symbols, the same symbols where arithmetic is
//! the same, and hardly another one where f32 sums run in another order.

use std::sync::Arc;

use kvasir_codec::{
    ChunkEncoder, ChunkInput, CpuDecoder, KvBuffer,
    container::Head,
    rans::{Coding, PieceDecoder, PiecePlan, encode_piece},
};
use kvasir_types::{ChainLink, Level, Loss, Plane};

use super::{
    common::{Noise, Setup, cache, setups},
    emulated::EmulatedDevice,
};
use crate::{CudaError, EncodeRequest, KernelEncoder};

fn encoder(setup: &Setup) -> KernelEncoder<EmulatedDevice> {
    let made =
        KernelEncoder::new(EmulatedDevice::default(), Arc::clone(&setup.spec), Arc::clone(&setup.profile));
    made.expect("the profile fits").expect("the emulator works")
}

fn input<'a>(tokens: &'a [u32], first_position: u64, kv: &'a KvBuffer) -> ChunkInput<'a> {
    let preceding_token = (first_position > 0).then_some(3);
    ChunkInput {
        tokens,
        preceding_token,
        first_position,
        link: ChainLink::first([9; 32].into()),
        beneath: Loss::NONE,
        kv,
    }
}

/// Quantised values of the finest level of every scope and span, and a check that every piece is what the CPU's coder makes
/// of its values.
fn symbols(setup: &Setup, object: &[u8]) -> Vec<i32> {
    let head = Head::parse(object).expect("a whole object");
    let cpu = CpuDecoder::new(Arc::clone(&setup.spec), Arc::clone(&setup.profile)).expect("fits");
    let top = Level(setup.profile.level_count() as u8 - 1);
    let scopes: Vec<_> = (0..cpu.scope_count()).map(|scope| (scope, top)).collect();
    let tokens = head.header.token_count as usize;
    let bank = setup.profile.bank();
    let mut all = Vec::new();
    for span in cpu.scope_spans(&head, object, &scopes, 0..tokens).expect("whole") {
        let view = cpu.scope_view(span.scope).expect("exists");
        let groups = match view.predictor {
            kvasir_codec::PredictorView::Anchors { group, .. } => span.tokens.len().div_ceil(group),
            _ => 0,
        };
        let count = span.tokens.len() - groups;
        if count == 0 || span.is_exact() {
            continue;
        }
        let mut values = vec![0i32; view.rank * count];
        for (piece, (coefficients, codings)) in span.levels.iter().zip(&view.levels) {
            let mut rows: Vec<i32> =
                coefficients.iter().flat_map(|c| values[c * count..(c + 1) * count].to_vec()).collect();
            let plan = PiecePlan { coefficients: codings, tokens: count };
            let bytes = piece.map_or(&[][..], |(_, bytes)| bytes);
            PieceDecoder::scalar().decode_piece(bank, &plan, bytes, &mut rows).expect("decodes");
            let mut again = Vec::new();
            encode_piece(bank, &plan, &rows, &mut again).expect("encodes");
            assert_eq!(again, bytes, "the same symbols are the same bytes");
            for (row, c) in rows.chunks_exact(count).zip(*coefficients) {
                values[c * count..(c + 1) * count].copy_from_slice(row);
            }
            debug_assert!(codings.iter().all(|c| matches!(c, Coding::Stage { .. } | Coding::Trit { .. })));
        }
        all.extend(values);
    }
    all
}

/// At most one symbol in 10,000 (and one in all) is another, and by one.
pub(super) fn assert_nearly_the_same(setup: &Setup, ours: &[u8], cpu: &[u8], what: &str) {
    let (ours, cpu) = (symbols(setup, ours), symbols(setup, cpu));
    assert_eq!(ours.len(), cpu.len(), "{what}");
    let off: Vec<i32> = ours.iter().zip(&cpu).map(|(a, b)| (a - b).abs()).filter(|d| *d > 0).collect();
    assert!(off.len() <= 1 + ours.len() / 10_000, "{what}: {} of {} differ", off.len(), ours.len());
    assert!(off.iter().all(|d| *d == 1), "{what}: {off:?}");
}

#[test]
fn every_recipe_encodes_as_on_the_cpu() {
    for (index, setup) in setups().iter().enumerate() {
        let encoder = encoder(setup);
        for (count, first_position) in [(1, 0), (40, 0), (300, 77_777)] {
            let text = Noise::new(count as u64).tokens(count);
            let kv = cache(&setup.spec, &text, 5);
            let what = format!("recipe {index}, {count} tokens");
            let ours = encoder.encode(&input(&text, first_position, &kv)).expect("encodes");
            let cpu = setup.encode(&text, first_position, &kv);
            if setup.profile.is_direct() {
                assert!(ours == cpu, "{what}: other bytes");
            }
            assert_nearly_the_same(setup, &ours, &cpu, &what);
            // What it says is what the CPU decoder finds: no path decodes only its own objects.
            setup.decode(&ours, setup.profile.level_count() - 1).expect("decodes");
        }
    }
}

#[test]
fn streams_without_room_are_coded_on_the_host_to_the_same_bytes() {
    let setup = &setups()[0];
    let text = Noise::new(8).tokens(60);
    let kv = cache(&setup.spec, &text, 5);
    let cramped = encoder(setup).with_stream_words(24);
    let ours = cramped.encode(&input(&text, 0, &kv)).expect("encodes");
    assert!(ours == setup.encode(&text, 0, &kv), "other bytes");
}

#[test]
fn values_that_cannot_be_quantised_are_stored_as_they_are() {
    for setup in &setups()[..3] {
        let text = Noise::new(4).tokens(290);
        for (token, value) in [(2, f32::NAN), (200, f32::NEG_INFINITY), (270, 3e30), (0, f32::INFINITY)] {
            let mut kv = cache(&setup.spec, &text, 5);
            kv.rows_mut(0, Plane::V, 1)[token * 8 + 3] = value;
            let ours = encoder(setup).encode(&input(&text, 0, &kv)).expect("encodes");
            let cpu = setup.encode(&text, 0, &kv);
            if setup.profile.is_direct() {
                assert!(ours == cpu, "other bytes with {value} at {token}");
            }
            assert_nearly_the_same(setup, &ours, &cpu, "beside exact spans");
            let back = setup.decode(&ours, 0).expect("decodes");
            let bf16 = half::bf16::from_f32(value).to_f32();
            assert_eq!(back.rows(0, Plane::V, 1)[token * 8 + 3].to_bits(), bf16.to_bits());
        }
    }
}

#[test]
fn requests_that_make_no_sense_are_typed_errors() {
    let setup = &setups()[0];
    let encoder = encoder(setup);
    let kv = KvBuffer::new(&setup.spec, 0);
    assert!(matches!(
        encoder.encode(&input(&[], 0, &kv)),
        Err(kvasir_codec::EncodeError::Tokens { tokens: 0, .. })
    ));
    let pages = crate::PagedKv { layers: vec![[None, None]; 5], block_tokens: 16, blocks: 4 };
    let request = EncodeRequest {
        tokens: &[1; 20],
        preceding_token: None,
        first_position: 0,
        link: ChainLink::first([0; 32].into()),
        beneath: Loss::NONE,
        blocks: &[0, 4],
        first_slot: 0,
    };
    // SAFETY: nothing is launched for pages that are not there.
    let refused = unsafe { encoder.encode_from(&[request], &pages) };
    assert!(matches!(refused, Err(CudaError::Pages { .. })), "{refused:?}");
    // SAFETY: as above.
    let refused = unsafe { encoder.partial(&[request], &pages) };
    assert!(matches!(refused, Err(CudaError::Pages { what }) if what.contains("outside")), "{refused:?}");
}
