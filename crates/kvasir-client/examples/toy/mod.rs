//! A toy model, so that the examples run without one: its "KV cache" is a function of the tokens.

use std::{error::Error, sync::Arc};

use kvasir_codec::{KvBuffer, Profile};
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Pairing, Reuse, Rope};

/// Eight layers of two heads.
pub(crate) fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 8 }, rope: Some(0) };
    ModelSpec {
        weights: "examples/toy".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: vec![Rope::plain(Pairing::Half, 8, 10_000.0)],
        layers: vec![layer; 8],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

/// Some text.
pub(crate) fn prompt(tokens: usize, seed: u32) -> Vec<u32> {
    (0..tokens as u32).map(|i| (i + seed * 10_007).wrapping_mul(2_654_435_761) >> 7 & 31).collect()
}

/// The model's computation.
pub(crate) fn prefill(tokens: &[u32]) -> KvBuffer {
    let mut kv = KvBuffer::new(&spec(), tokens.len());
    for (i, value) in kv.as_mut_slice().iter_mut().enumerate() {
        *value = (tokens[i / 8 % tokens.len()] as f32 * 0.37 + (i % 8) as f32).sin();
    }
    kv
}

/// A profile for it; a real one is trained once, with `kvasir profile train`. Its finest level is `transparent`: by
/// default clients load nothing coarser.
pub(crate) fn profile() -> Result<Arc<Profile>, Box<dyn Error>> {
    let tokens = prompt(1024, 0);
    let context = TrainingContext { first_position: 0, kv: prefill(&tokens), tokens };
    Ok(Arc::new(train(&spec(), &[context], &Recipe::Direct, 1e-4, &mut |_, _| ())?))
}
