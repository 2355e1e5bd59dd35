//! Several requests at once: what becomes of one is nothing to the others.

use std::{sync::Arc, time::Duration};

use kvasir_client::pages::Shard;
use kvasir_codec::{
    DecodeError,
    container::{ChunkBuilder, ChunkMeta, Head, SectionId},
    rans::PieceError,
};
use kvasir_kernels::Dtype;
use kvasir_types::{Level, Plane};

use super::{
    common::{Noise, Setup, cache, setups},
    emulated::EmulatedDevice,
    engine_cache::{Cache, Layout, POISON},
    loads::{Pages, load, stored},
};
use crate::{ChunkRequest, CudaError, KernelDecoder};

const TOKENS: usize = 250;
const BLOCK_TOKENS: usize = 64;
/// Blocks of a request.
const BLOCKS: usize = TOKENS.div_ceil(BLOCK_TOKENS);

/// The chunk with changed pieces, under checksums that fit them.
pub(super) fn changed(object: &[u8], change: impl Fn(SectionId, &mut Vec<u8>)) -> Vec<u8> {
    let head = Head::parse(object).expect("whole");
    let header = &head.header;
    let meta = ChunkMeta {
        first_position: header.first_position,
        preceding_token: header.preceding_token,
        level_count: header.level_count,
        exact_tokens: header.exact_tokens,
        ..ChunkMeta::new(header.model_id, header.profile_hash, header.link())
    };
    let mut builder = ChunkBuilder::new(meta, head.tokens.clone()).expect("its own fields");
    for (section, id) in head.sections().iter().enumerate() {
        let piece = |span| {
            let range = head.piece(section, span)?.range;
            let mut bytes = object[range.start as usize..range.end as usize].to_vec();
            change(*id, &mut bytes);
            Some(bytes)
        };
        builder.section(*id, (0..head.span_count()).map(piece).collect()).expect("one a span");
    }
    builder.finish().expect("in order")
}

/// The bytes of all rows of request `n`, whose tokens are in its own blocks.
fn rows(setup: &Setup, cache: &Cache, content: &[u8], n: usize) -> Vec<u8> {
    let mut rows = Vec::new();
    for (layer, kv) in setup.spec.layers.iter().enumerate() {
        for plane in Plane::ALL {
            let (heads, elements) = kv.layout.planes()[plane as usize];
            for (head, token) in (0..heads).flat_map(|head| (0..TOKENS).map(move |token| (head, token))) {
                let slot = n * BLOCKS * BLOCK_TOKENS + token;
                for element in 0..elements {
                    let at = cache.place(layer, plane as usize, head, slot, element).expect("is there");
                    rows.extend_from_slice(&content[at..at + 2]);
                }
            }
        }
    }
    rows
}

/// Bytes that do not fit their checksum; pieces that are too short, which shows when half of the request is in
/// the batch; and words that only a kernel finds wrong.
#[test]
fn a_request_that_fails_keeps_no_other_from_the_device() {
    for (index, setup) in setups()[..3].iter().enumerate() {
        let device = EmulatedDevice::default();
        let made = KernelDecoder::new(device, Arc::clone(&setup.spec), Arc::clone(&setup.profile));
        let decoder = made.expect("the profile fits").expect("the emulator works");
        let object = |seed: u64| {
            let text = Noise::new(seed).tokens(TOKENS);
            setup.encode(&text, 0, &cache(&setup.spec, &text, seed))
        };
        let sound = [1, 2, 3, 4, 5].map(object);
        let mut damaged = sound[1].clone();
        damaged.iter_mut().step_by(61).for_each(|byte| *byte ^= 1);
        let last = Head::parse(&sound[3]).expect("whole").sections().iter().map(|id| id.scope).max();
        let short = changed(&sound[3], |id, bytes| {
            if Some(id.scope) == last {
                bytes.truncate(1);
            }
        });
        let wrong = changed(&sound[4], |_, bytes| {
            // The values of a raw piece may be any, and the host checks its fill.
            let is_raw = bytes.get(1).is_some_and(|high| high & 0x80 != 0);
            if let Some(byte) = bytes.last_mut().filter(|_| !is_raw) {
                *byte ^= 0x5a;
            }
        });
        let objects = [&sound[0], &damaged, &sound[2], &short, &wrong];
        let with_heads = [&sound[0], &sound[1], &sound[2], &short, &wrong];
        let heads = with_heads.map(|object| Head::parse(object).expect("whole"));
        let how = (Layout::Flash, BLOCK_TOKENS as u32, Dtype::Bf16);
        let [alone, together] = [(); 2].map(|()| {
            let mut cache = Cache::new(&setup.spec, decoder.device(), how, 0..setup.spec.layers.len(), None);
            cache.first_slot = 0;
            cache
        });
        assert_eq!(alone.table, together.table);
        let request = |n: usize| ChunkRequest {
            head: &heads[n],
            object_prefix: objects[n],
            scopes: decoder.all_scopes(Level(1)),
            tokens: 0..TOKENS,
            blocks: &together.table[n * BLOCKS..(n + 1) * BLOCKS],
            first_slot: 0,
        };
        for n in [0, 2] {
            // SAFETY: the cache is of the layout that its planes say.
            unsafe { decoder.decode_into(&[request(n)], &alone.pages) }.expect("decodes");
        }
        let requests: Vec<_> = (0..objects.len()).map(request).collect();
        let done = || [decoder.device().copies(), decoder.device().launched().len()];
        let before = done();
        // SAFETY: as above.
        let decoded = unsafe { decoder.decode_each(&requests, &together.pages) };
        let (outcomes, scratch_bytes, times) = decoded.expect("the device works");
        let after = done();
        // Each of them takes a millisecond.
        let expected = [0, 1].map(|kind| Duration::from_millis((after[kind] - before[kind]) as u64));
        assert!(times == expected && !times.contains(&Duration::ZERO), "profile {index}: {times:?}");
        let failed: Vec<usize> = (0..outcomes.len()).filter(|n| outcomes[*n].is_err()).collect();
        assert_eq!((&failed[..], scratch_bytes > 0), (&[1, 3, 4][..], true), "profile {index}: {outcomes:?}");
        for n in failed {
            assert!(matches!(outcomes[n], Err(CudaError::Decode(_))), "profile {index}: {outcomes:?}");
            assert!(setup.decode(objects[n], 1).is_err(), "profile {index}: the CPU decodes request {n}");
        }
        let Err(CudaError::Decode(DecodeError::Piece { source, .. })) = &outcomes[4] else {
            panic!("profile {index}: {outcomes:?}");
        };
        let by_kernel = matches!(
            source,
            PieceError::State { .. } | PieceError::Underrun { .. } | PieceError::FinalState { .. }
        );
        assert!(by_kernel, "profile {index}: {source}");
        let [expected, found] = [&alone, &together].map(|cache| cache.content(decoder.device()));
        for n in [0, 2] {
            let of = |content: &[u8]| rows(setup, &together, content, n);
            assert!(of(&found) == of(&expected), "profile {index}: request {n} has other rows than alone");
        }
        for n in [1, 3] {
            let rows = rows(setup, &together, &found, n);
            assert!(rows.iter().all(|byte| *byte == POISON), "profile {index}: request {n} was written");
        }
        let launched = decoder.device().launched().len();
        // SAFETY: as above.
        let refused = unsafe { decoder.decode_into(&[request(1), request(3)], &together.pages) };
        assert!(matches!(refused, Err(CudaError::Decode(_))), "profile {index}: {refused:?}");
        assert_eq!(decoder.device().launched().len(), launched, "profile {index}: nothing is left");
    }
}

#[tokio::test]
async fn a_load_says_what_memory_and_time_it_took_of_the_device() {
    let [first, second] = [&setups()[0], &setups()[1]];
    let pages = Pages::new(&first.spec, (Layout::Flash, 32, Dtype::Bf16), Shard::ALL, None);
    let mut taken = Vec::new();
    for setup in [first, second, first] {
        let (_server, kvasir, text) = stored(setup).await;
        let before = pages.device.launched().len();
        let loaded = load(&kvasir, &text, vec![pages.table()], 1).await;
        let used = &loaded.report().expect("it loaded").device;
        let memory = used.memory;
        assert!(memory.scratch > 0 && memory.pinned == 0, "the emulator pins nothing: {memory:?}");
        taken.push(memory.profiles);
        // Those of the other thread count where they are in between.
        let launched = pages.device.launched().len() - before;
        let least = Duration::from_millis(launched as u64);
        assert!(launched > 0 && used.times.kernels >= least && used.times.copies >= least, "{used:?}");
        assert!(!used.times.waited.is_zero(), "for a profile, or a slot: {used:?}");
    }
    // Both profiles stay.
    assert!(0 < taken[0] && taken[0] < taken[1] && taken[1] == taken[2], "{taken:?}");
}
