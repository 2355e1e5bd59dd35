//! Whole chunks: every recipe, level and token range, against the CPU decoder.

use std::{ops::Range, sync::Arc};

use kvasir_codec::{ChunkDecoder, KvBuffer, container::Head};
use kvasir_kernels::Kernel;
use kvasir_types::{Level, Plane};

use super::{
    common::{Noise, Setup, cache, exact_setup, setups, typed},
    emulated::{EmulatedDevice, host_range},
};
use crate::KernelDecoder;

pub(super) fn decoder(setup: &Setup) -> KernelDecoder<EmulatedDevice> {
    let made =
        KernelDecoder::new(EmulatedDevice::default(), Arc::clone(&setup.spec), Arc::clone(&setup.profile));
    made.expect("the profile fits").expect("the emulator works")
}

pub(super) fn both(
    setup: &Setup,
    decoder: &KernelDecoder<EmulatedDevice>,
    object: &[u8],
    level: usize,
) -> (KvBuffer, KvBuffer) {
    let head = Head::parse(object).expect("a whole object");
    let tokens = head.header.token_count as usize;
    let mut device = KvBuffer::new(&setup.spec, tokens);
    decoder.decode(&head, object, Level(level as u8), 0..tokens, &mut device).expect("decodes");
    (setup.decode(object, level).expect("decodes"), device)
}

/// Direct profiles are bit-exact; basis profiles differ by the order of f32 sums alone.
pub(super) fn assert_same(setup: &Setup, cpu: &KvBuffer, device: &KvBuffer, what: &str) {
    if setup.profile.is_direct() {
        let pairs = cpu.as_slice().iter().zip(device.as_slice());
        let different = pairs.clone().position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(different, None, "{what}");
        return;
    }
    let scale = cpu.as_slice().iter().fold(0f32, |most, v| most.max(v.abs()));
    for (i, (a, b)) in cpu.as_slice().iter().zip(device.as_slice()).enumerate() {
        assert!((a - b).abs() <= 2e-6 * scale, "{what}: element {i} is {b}, not {a}");
    }
}

#[test]
fn every_recipe_and_level_decodes_as_on_the_cpu() {
    let mut launched = Vec::new();
    for (index, setup) in setups().iter().enumerate() {
        let decoder = decoder(setup);
        for (tokens, first_position) in [(1, 0), (40, 0), (300, 77_777)] {
            let text = Noise::new(tokens as u64).tokens(tokens);
            let kv = cache(&setup.spec, &text, 5);
            let object = setup.encode(&text, first_position, &kv);
            for level in 0..setup.profile.level_count() {
                let (cpu, device) = both(setup, &decoder, &object, level);
                assert_same(setup, &cpu, &device, &format!("recipe {index}, {tokens} tokens, level {level}"));
            }
        }
        launched.extend(decoder.device().launched());
    }
    for kernel in [Kernel::Angles, Kernel::Exact, Kernel::Scatter, Kernel::Synthesise, Kernel::Direct1] {
        assert!(launched.contains(&kernel), "{} was never run", kernel.name());
    }
}

/// An exact level and those beneath: their coefficients are elements, and the text predicts them.
#[test]
fn what_the_text_predicts_is_added_without_a_basis() {
    let setup = exact_setup();
    let (decoder, levels) = (decoder(&setup), setup.profile.level_count());
    assert!(levels > 2 && levels == setup.profile.lossy_levels() + 1);
    for (tokens, first_position) in [(40, 0), (300, 77_777)] {
        let text = Noise::new(tokens as u64).tokens(tokens);
        let object = setup.encode(&text, first_position, &typed(&setup.spec, &text, 5));
        for level in 0..levels {
            let (cpu, device) = both(&setup, &decoder, &object, level);
            assert_same(&setup, &cpu, &device, &format!("{tokens} tokens, level {level}"));
        }
    }
}

/// Each once, and from where it was received: the host puts no pieces behind each other before.
#[test]
fn pieces_are_copied_out_of_the_object() {
    let exact = exact_setup();
    for (index, setup) in setups().iter().chain([&exact]).enumerate() {
        let (decoder, text) = (decoder(setup), Noise::new(3).tokens(300));
        let object = setup.encode(&text, 0, &typed(&setup.spec, &text, 6));
        let (cpu, device) = both(setup, &decoder, &object, setup.profile.level_count() - 1);
        assert_same(setup, &cpu, &device, &format!("recipe {index}"));
        let (received, mut copied) = (host_range(&object), decoder.device().copied_from("bytes"));
        copied.sort_by_key(|part| part.start);
        assert!(!copied.is_empty(), "recipe {index}");
        let is_received = |part: &Range<usize>| received.start <= part.start && part.end <= received.end;
        assert!(copied.iter().all(is_received), "recipe {index}: {received:?}, {copied:?}");
        assert!(copied.windows(2).all(|pair| pair[0].end <= pair[1].start), "recipe {index}: {copied:?}");
    }
}

/// After an error, the pages are the caller's: nothing that was launched before it still writes to them.
#[test]
fn a_launch_that_fails_leaves_none_running() {
    let setup = &setups()[0];
    let text = Noise::new(4).tokens(280);
    let object = setup.encode(&text, 0, &cache(&setup.spec, &text, 5));
    let head = Head::parse(&object).expect("whole");
    let decoder = decoder(setup);
    let mut failures = 0;
    for n in 0.. {
        let before = decoder.device().launched().len();
        decoder.device().fail_at(n);
        let mut sink = KvBuffer::new(&setup.spec, 280);
        let decoded = decoder.decode(&head, &object, Level::BASE, 0..280, &mut sink);
        let launched = decoder.device().launched().len();
        if launched - before < n {
            assert!(decoded.is_ok());
            break;
        }
        failures += 1;
        assert!(n == 0 || decoder.device().waited() == launched, "the launch {n} failed");
    }
    assert!(failures > 2);
}

/// The same if the driver refuses everything from then on, an event to wait for too.
#[test]
fn a_device_that_is_gone_leaves_no_kernel_running() {
    let setup = &setups()[0];
    let text = Noise::new(4).tokens(280);
    let object = setup.encode(&text, 0, &cache(&setup.spec, &text, 5));
    let head = Head::parse(&object).expect("whole");
    let decoder = decoder(setup);
    let mut left = 0;
    for n in 0.. {
        let before = decoder.device().launched().len();
        decoder.device().be_gone(n);
        let mut sink = KvBuffer::new(&setup.spec, 280);
        if decoder.decode(&head, &object, Level::BASE, 0..280, &mut sink).is_ok() {
            break;
        }
        let launched = decoder.device().launched().len();
        left += launched - before;
        assert!(launched == before || decoder.device().waited() == launched, "gone at call {n}");
    }
    assert!(left > 2);
}

#[test]
fn a_range_of_tokens_is_that_part_of_the_whole() {
    for setup in setups() {
        let text = Noise::new(3).tokens(280);
        let kv = cache(&setup.spec, &text, 6);
        let object = setup.encode(&text, 10, &kv);
        let head = Head::parse(&object).expect("whole");
        let mut whole = KvBuffer::new(&setup.spec, 280);
        let decoder = decoder(setup);
        decoder.decode(&head, &object, Level(1), 0..280, &mut whole).expect("decodes");
        struct Part<'a>(&'a KvBuffer, usize);
        impl kvasir_codec::KvSink for Part<'_> {
            fn write(&mut self, layer: usize, plane: Plane, head: usize, first: usize, rows: &[f32]) {
                let all = self.0.rows(layer, plane, head);
                let dim = all.len() / 280;
                assert_eq!(&all[first * dim..first * dim + rows.len()], rows);
                self.1 += rows.len();
            }
        }
        let mut part = Part(&whole, 0);
        decoder.decode(&head, &object, Level(1), 251..260, &mut part).expect("decodes");
        assert_eq!(part.1, 9 * setup.spec.elements_per_token());
    }
}
