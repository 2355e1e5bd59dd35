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

#[test]
fn names_are_bounded_together() {
    type Change = fn(&mut ModelSpec, String);
    let changes: [Change; 5] = [
        |s, text| s.weights = text,
        |s, text| s.revision = text,
        |s, text| s.adapter = Some(text),
        |s, text| s.thinning = Some(Thinning { method: text, parameters: String::new() }),
        |s, text| s.thinning = Some(Thinning { method: String::new(), parameters: text }),
    ];
    // Beside the changed name there is one byte of another.
    for (n, change) in changes.into_iter().enumerate() {
        let checked = |bytes: usize| {
            let (weights, revision) = if n == 0 { ("", "r") } else { ("w", "") };
            let mut changed = ModelSpec { weights: weights.into(), revision: revision.into(), ..spec() };
            change(&mut changed, "x".repeat(bytes));
            changed.validate()
        };
        assert_eq!(checked(SPEC_TEXT_BYTES_MAX - 1), Ok(()), "change {n}");
        let bytes = SPEC_TEXT_BYTES_MAX + 1;
        assert_eq!(checked(SPEC_TEXT_BYTES_MAX), Err(SpecError::Text { bytes }), "change {n}");
    }
}

#[test]
fn ropes_and_their_frequencies_are_bounded() {
    let checked = |count: usize, pairs: usize| {
        let rope = Rope { freqs: vec![1; pairs], ..Rope::plain(Pairing::Half, 64, 1e4) };
        let mut changed = spec();
        changed.ropes.resize(count, rope);
        changed.validate()
    };
    assert_eq!(checked(ROPES_MAX, ROTARY_DIMS_MAX as usize / 2), Ok(()));
    let ropes = ROPES_MAX + 1;
    assert_eq!(checked(ropes, 32), Err(SpecError::Ropes { ropes }));
    // No layer names it.
    let refused = checked(2, ROTARY_DIMS_MAX as usize / 2 + 1).expect_err("too many frequencies");
    assert_eq!(refused, SpecError::Rope { rope: 1 });
    assert!(refused.to_string().contains("1 to 512 frequencies"), "{refused}");
}

/// However a spec is written, it is one model, and what is written is short.
#[test]
fn spellings_of_json_are_one_model() {
    let rope = r#"{"pairing":"half","rotary_dims":64,"theta":10000.0}"#;
    let layer = r#"{"layout":{"kind":"gqa","kv_heads":2,"head_dim":64},"rope":0}"#;
    let run = layer.replacen('{', r#"{"count":8,"#, 1);
    let written = |rope: &str, layers: &str| {
        format!(
            r#"{{"weights":"kvasir-tiny","revision":"1","kv_dtype":"f16","ropes":[{rope}],"layers":[{layers}],"reuse":"prefix"}}"#
        )
    };
    let short = written(rope, &run);
    assert_eq!(serde_json::to_string(&spec()).expect("serialises"), short);
    let freqs: Vec<String> = spec().ropes[0].freqs.iter().map(|f| format!("\"{f}\"")).collect();
    let raw =
        format!(r#"{{"pairing":"half","offset":0,"freqs":[{}],"attention_factor":1.0}}"#, freqs.join(","));
    for text in [
        short,
        written(&raw, &[layer; 8].join(",")),
        written(&raw, &run),
        written(rope, &[layer; 8].join(",")),
    ] {
        let read: ModelSpec = serde_json::from_str(&text).expect("parses");
        assert_eq!((read.model_id(), &read), (spec().model_id(), &spec()), "{text}");
    }
    let mut moved = spec();
    moved.ropes[0].freqs[1] ^= 1;
    let json = serde_json::to_string(&moved).expect("serialises");
    assert!(json.contains("freqs") && !json.contains("theta"), "a formula that no longer gives them: {json}");
    assert_eq!(serde_json::from_str::<ModelSpec>(&json).expect("parses"), moved);
}

#[test]
fn a_yarn_rope_has_its_attention_factor() {
    let read = |more: &str| -> Result<Rope, serde_json::Error> {
        let scaling = r#"{"type":"yarn","factor":40.0,"original_max_position_embeddings":4096}"#;
        let text =
            format!(r#"{{"pairing":"half","rotary_dims":64,"theta":10000.0,"scaling":{scaling}{more}}}"#);
        let rope: Rope = serde_json::from_str(&text)?;
        assert_eq!(serde_json::to_string(&rope).expect("serialises"), text);
        Ok(rope)
    };
    assert_eq!(read("").expect("known").attention_factor, (0.1 * 40f64.ln() + 1.0) as f32);
    assert_eq!(read(r#","attention_factor":1.0"#).expect("known").attention_factor, 1.0);
}

#[test]
fn impossible_json_is_refused_by_name() {
    for (rope, names) in [
        (r#"{"pairing":"half"}"#, "either `freqs`"),
        (r#"{"pairing":"half","theta":1e4}"#, "either `freqs`"),
        (r#"{"pairing":"half","freqs":["1"],"theta":1e4,"rotary_dims":2}"#, "either `freqs`"),
        (r#"{"pairing":"half","freqs":["1"],"scaling":{"type":"linear","factor":2.0}}"#, "either `freqs`"),
        (r#"{"pairing":"half","freqs":["x"]}"#, "freqs: invalid digit"),
        (r#"{"pairing":"half","theta":1e4,"rotary_dims":3}"#, "rotary_dims must be even"),
        (r#"{"pairing":"half","theta":1e4,"rotary_dims":4294967294}"#, "rotary_dims must be even"),
        (r#"{"pairing":"half","theta":1.0,"rotary_dims":2}"#, "theta must be above 1"),
        (
            r#"{"pairing":"half","theta":1e4,"rotary_dims":2,"scaling":{"type":"linear","factor":0.0}}"#,
            "gives pair 0 a frequency outside",
        ),
        (
            r#"{"pairing":"half","theta":1e4,"rotary_dims":4,"scaling":{"type":"longrope","factors":[1.0]}}"#,
            "each of 2 pairs, found 1",
        ),
        (
            r#"{"pairing":"half","theta":1e4,"rotary_dims":2,"scaling":{"type":"longrope","factors":[1e39]}}"#,
            "gives pair 0 a frequency outside",
        ),
        (
            r#"{"pairing":"half","theta":1e4,"rotary_dims":2,"scaling":{"type":"ntk","factor":2.0}}"#,
            "unknown variant",
        ),
    ] {
        let error = serde_json::from_str::<Rope>(rope).expect_err(rope).to_string();
        assert!(error.contains(names), "{rope}: {error}");
    }
    let json = serde_json::to_string(&spec()).expect("serialises");
    for count in ["0", "257", "4294967295"] {
        let error =
            serde_json::from_str::<ModelSpec>(&json.replace("\"count\":8", &format!("\"count\":{count}")));
        assert!(error.expect_err(count).to_string().contains("all runs together must have 1 to 256 layers"));
    }
    let rope = r#"{"pairing":"half","rotary_dims":1024,"theta":10000.0}"#;
    let many = json.replacen("\"ropes\":[", &format!("\"ropes\":[{}", format!("{rope},").repeat(300)), 1);
    assert!(serde_json::from_str::<ModelSpec>(&many).expect_err("many").to_string().contains("301 ropes"));
}

/// Every example of the document is a spec, of the size that stands before it.
#[test]
fn examples_of_the_document_are_specs() {
    let document = include_str!("../../MODEL-SPEC.md");
    let mut examples = 0;
    for block in document.split("```json\n").skip(1) {
        let (json, rest) = block.split_once("```").expect("a block ends");
        let spec: ModelSpec = serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}"));
        spec.validate().expect("possible");
        let said = rest.split_once(" bytes a token").and_then(|(text, _)| text.split_whitespace().last());
        let said: usize = said.expect("a size follows").replace(',', "").parse().expect("a number");
        assert_eq!(spec.bytes_per_token(), said, "{json}");
        let written = serde_json::to_value(&spec).expect("serialises");
        assert_eq!(
            written,
            serde_json::from_str::<serde_json::Value>(json).expect("JSON"),
            "the shortest form"
        );
        examples += 1;
    }
    assert_eq!(examples, 3);
}
