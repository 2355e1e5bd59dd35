//! The shipped profile on the shipped model: sizes and losses stay what the card says.

use std::sync::Arc;

use kvasir_codec::Profile;
use kvasir_engine::{Model, TINY_PROFILE, quality::measure_levels};

#[test]
fn the_shipped_profile_keeps_its_promises() {
    let model = Model::kvasir_tiny().expect("embedded model");
    let profile = Arc::new(Profile::from_bytes(TINY_PROFILE).expect("shipped profile"));
    assert_eq!(profile.model_id(), model.spec().model_id());
    let tokens = model.tokenizer().encode(include_str!("data/harbour.txt")).expect("plain text");
    let levels = measure_levels(&model, &profile, &[&tokens], 320).expect("round trip");
    assert_eq!(levels.len(), 4);
    for (level, (bits_max, kl_max)) in
        levels.iter().zip([(0.014, 1.2e-2), (0.025, 8e-3), (0.22, 2.5e-3), (0.8, 5e-4)])
    {
        let (bits, kl) = (level.bits_per_element, level.quality.kl.mean);
        assert!(bits < bits_max && kl < kl_max, "level {}: {bits} bits, KL {kl}", level.level);
    }
    assert!(levels.is_sorted_by(|a, b| a.bytes < b.bytes));
    let (base, top) = (levels[0].quality, levels[3].quality);
    assert!(top.kl.mean < base.kl.mean && top.top1_agreement.mean >= base.top1_agreement.mean);
}
