//! Rotated heads wider than a tile of 128 elements: where a device's shared memory holds them, and where it does not.

use std::sync::Arc;

use kvasir_codec::{CpuDecoder, container::Head};
use kvasir_kernels::Dtype;
use kvasir_train::Recipe;
use kvasir_types::{KvDtype, KvLayout, Level};

use super::{
    chunks::{assert_same, both, decoder},
    common::{Noise, Setup, cache, mixed_spec},
    emulated::EmulatedDevice,
    engine_cache::{Cache, Layout, POISON},
};
use crate::{ChunkRequest, CudaError, KernelEncoder};

/// Shared memory of a CTA on sm_89. A tile of 256 elements takes more, one of 128 does not.
const SMALL: usize = 99 * 1024;

fn is_wide(cpu: &CpuDecoder, scope: usize) -> bool {
    let view = cpu.scope_view(scope).expect("exists");
    view.members.iter().any(|member| member.rope.is_some() && member.dim > 128)
}

/// Nothing is launched for a request with such a head; other scopes and other ranks are decoded.
#[test]
fn a_head_that_a_device_has_no_room_for_is_refused_before_anything_is_launched() {
    let mut spec = mixed_spec(KvDtype::Bf16);
    spec.layers[0].layout = KvLayout::Gqa { kv_heads: 1, head_dim: 256 };
    let setup = Setup::new(spec, &Recipe::Direct);
    let text = Noise::new(7).tokens(40);
    let object = setup.encode(&text, 9, &cache(&setup.spec, &text, 5));
    let decoder = decoder(&setup);
    let (cpu, device) = both(&setup, &decoder, &object, 0);
    assert_same(&setup, &cpu, &device, "where there is room");

    decoder.device().limit_shared(SMALL);
    let how = (Layout::Flash, 16, Dtype::Bf16);
    let cache = Cache::new(&setup.spec, decoder.device(), how, 0..5, None);
    let head = Head::parse(&object).expect("whole");
    let request = |scopes| ChunkRequest {
        head: &head,
        object_prefix: &object,
        scopes,
        tokens: 0..40,
        blocks: &cache.table,
        first_slot: cache.first_slot,
    };
    let all = decoder.all_scopes(Level::BASE);
    let launched = decoder.device().launched().len();
    // SAFETY: the cache is of the layout that its planes say.
    let refused = unsafe { decoder.decode_into(&[request(all.clone())], &cache.pages) };
    assert!(matches!(refused, Err(CudaError::SharedMemory { elements: 256, .. })), "{refused:?}");
    // SAFETY: as above.
    let refused = unsafe { decoder.submit(&[request(all.clone())], &cache.pages) };
    assert!(matches!(refused, Err(CudaError::SharedMemory { max: SMALL, .. })), "{refused:?}");
    assert_eq!(decoder.device().launched().len(), launched);
    assert!(cache.content(decoder.device()).iter().all(|byte| *byte == POISON));

    let scopes = all.iter().copied();
    let (wide, narrow): (Vec<_>, Vec<_>) = scopes.partition(|(scope, _)| is_wide(&decoder.cpu, *scope));
    // SAFETY: as above.
    let decoded = unsafe { decoder.decode_each(&[request(wide), request(narrow)], &cache.pages) };
    let (outcomes, ..) = decoded.expect("the device works");
    assert!(matches!(outcomes[..], [Err(CudaError::SharedMemory { .. }), Ok(())]), "{outcomes:?}");
    let rank = Cache::new(&setup.spec, decoder.device(), how, 4..5, None);
    let request = ChunkRequest { blocks: &rank.table, ..request(all) };
    // SAFETY: as above.
    unsafe { decoder.decode_into(&[request], &rank.pages) }.expect("the wide head is another rank's");

    let device = EmulatedDevice::default();
    device.limit_shared(SMALL);
    let made = KernelEncoder::new(device, Arc::clone(&setup.spec), Arc::clone(&setup.profile));
    assert!(matches!(made, Ok(Err(CudaError::SharedMemory { elements: 256, .. }))), "{made:?}");
}
