use super::*;

fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 64 }, rope: Some(0) };
    ModelSpec {
        weights: "kvasir-tiny".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: vec![Rope::plain(Pairing::Half, 64, 10_000.0)],
        layers: vec![layer; 8],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

#[test]
fn json_round_trips_exactly() {
    let json = serde_json::to_string(&spec()).expect("serialises");
    let back: ModelSpec = serde_json::from_str(&json).expect("parses");
    assert_eq!(back, spec());
    assert_eq!(back.model_id(), spec().model_id());
    assert!(
        serde_json::from_str::<ModelSpec>(&json.replacen("{", "{\"tp\":2,", 1)).is_err(),
        "unknown field"
    );
}

#[test]
fn every_field_enters_the_model_id() {
    type Change = fn(&mut ModelSpec);
    let changes: [Change; 12] = [
        |s| s.weights.push('x'),
        |s| s.revision.push('x'),
        |s| s.adapter = Some(String::new()),
        |s| s.kv_dtype = KvDtype::Bf16,
        |s| s.ropes[0].freqs[3] ^= 1,
        |s| s.ropes[0].pairing = Pairing::Interleaved,
        |s| s.ropes[0].offset = 1,
        |s| s.ropes[0].attention_factor = 1.5,
        |s| s.layers[7].rope = None,
        |s| s.layers[7].layout = KvLayout::SlidingWindow { kv_heads: 2, head_dim: 64, window: 0 },
        |s| s.thinning = Some(Thinning { method: String::new(), parameters: String::new() }),
        |s| s.reuse = Reuse::Whole,
    ];
    let mut ids = vec![spec().model_id()];
    for change in changes {
        let mut changed = spec();
        change(&mut changed);
        ids.push(changed.model_id());
    }
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
}

#[test]
fn sizes_follow_the_arithmetic() {
    assert_eq!(spec().elements_per_token(), 8 * 2 * 2 * 64);
    assert_eq!(spec().bytes_per_token(), 4096);
}

#[test]
fn impossible_specs_are_refused() {
    let refused = |change: fn(&mut ModelSpec)| {
        let mut changed = spec();
        change(&mut changed);
        changed.validate().expect_err("impossible")
    };
    assert_eq!(refused(|s| s.layers.clear()), SpecError::Layers { layers: 0 });
    assert_eq!(refused(|s| s.layers[1].rope = Some(9)), SpecError::RopeIndex { layer: 1, rope: 9, ropes: 1 });
    assert_eq!(refused(|s| s.ropes[0].offset = 1), SpecError::RopeShape { layer: 0, head_dim: 64 });
    assert_eq!(
        refused(|s| s.layers[2].layout = KvLayout::Gqa { kv_heads: 0, head_dim: 64 }),
        SpecError::Shape { layer: 2 }
    );
    assert!(spec().validate().is_ok());
}

/// Ropes that no layer names are kept and given back, too: 1e39 would come back as `null`.
#[test]
fn a_rope_is_checked_whether_a_layer_names_it_or_not() {
    for factor in ["1e39", "-1e39", "0", "-0.5", "1e-60"] {
        for named in [true, false] {
            let mut json = serde_json::to_value(spec()).expect("serialises");
            let plain = json["ropes"][0].clone();
            let ropes = json["ropes"].as_array_mut().expect("ropes");
            ropes.push(plain);
            let rope = if named { 0 } else { 1 };
            ropes[rope]["attention_factor"] = serde_json::from_str(factor).expect("a number of JSON");
            let changed: ModelSpec = serde_json::from_value(json).expect("parses");
            let refused = changed.validate().expect_err("impossible");
            assert_eq!(refused, SpecError::Rope { rope }, "{factor}");
            assert!(refused.to_string().ends_with("above 0 and at most 3.4028235e38"), "{refused}");
        }
    }
    let mut empty = spec();
    empty.ropes.push(Rope { freqs: Vec::new(), ..Rope::plain(Pairing::Half, 64, 1e4) });
    assert_eq!(empty.validate(), Err(SpecError::Rope { rope: 1 }));
}
