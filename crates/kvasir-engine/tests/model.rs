//! The model against itself: however the same context is computed, the same comes out.

use std::sync::LazyLock;

use kvasir_codec::KvSink;
use kvasir_engine::{EngineError, Logits, Model, PagedKv, Sampling, StepItem, quality};

use kvasir_types::{Plane, TokenRange};

/// f32 sums in another order, over 8 layers with keys and values rounded to f16 in between. Measured: 0.0074
/// at most over 1,000 tokens of a novel; logits span about 20.
const LOGIT_TOLERANCE: f32 = 0.03;

static MODEL: LazyLock<Model> = LazyLock::new(|| Model::kvasir_tiny().expect("embedded model"));
static TOKENS: LazyLock<Vec<u32>> =
    LazyLock::new(|| MODEL.tokenizer().encode(include_str!("data/harbour.txt")).expect("plain text"));

fn largest_difference(a: &Logits, b: &Logits) -> f32 {
    assert_eq!(a.len(), b.len());
    a.rows().flatten().zip(b.rows().flatten()).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

fn planes(kv: &PagedKv) -> Vec<f32> {
    let mut all = Vec::new();
    for layer in 0..kv.layers() {
        for (plane, head) in Plane::ALL.into_iter().flat_map(|p| [(p, 0), (p, 1)]) {
            let start = all.len();
            all.resize(start + kv.len() * 64, 0.0);
            kv.read_head(layer, plane, head, 0..kv.len(), &mut all[start..]);
        }
    }
    all
}

#[test]
fn decoding_token_by_token_equals_one_prefill() {
    let tokens = &TOKENS[..96];
    let whole = MODEL.logits(&mut MODEL.new_kv().unwrap(), tokens).unwrap();
    let mut kv = MODEL.calculate_kv(&tokens[..40]).unwrap();
    let rest = Model::kvasir_tiny().unwrap().with_prefill_tokens(1).logits(&mut kv, &tokens[40..]).unwrap();
    let difference = (0..56)
        .flat_map(|i| whole.row(40 + i).iter().zip(rest.row(i)))
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(difference < LOGIT_TOLERANCE, "{difference}");
}

#[test]
fn prefill_steps_of_any_size_agree() {
    let whole = MODEL.logits(&mut MODEL.new_kv().unwrap(), &TOKENS).unwrap();
    for step in [7, 64, 255] {
        let model = Model::kvasir_tiny().unwrap().with_prefill_tokens(step);
        let mut kv = model.new_kv().unwrap();
        let stepped = model.logits(&mut kv, &TOKENS).unwrap();
        let difference = largest_difference(&whole, &stepped);
        assert!(difference < LOGIT_TOLERANCE, "steps of {step}: {difference}");
        assert_eq!(kv.len(), TOKENS.len());
    }
}

#[test]
fn a_cache_copied_through_a_sink_is_bit_exact_and_so_are_its_logits() {
    let (prefix, suffix) = TOKENS.split_at(300);
    let kv = MODEL.calculate_kv(prefix).unwrap();
    let mut copy = MODEL.new_kv().unwrap();
    copy.reserve(prefix.len()).unwrap();
    let mut sink = copy.sink(0).unwrap();
    for (layer, plane) in (0..8).flat_map(|l| Plane::ALL.map(|p| (l, p))) {
        for (head, half) in [(0, 0..150), (1, 0..150), (0, 150..300), (1, 150..300)] {
            let mut rows = vec![0.0; half.len() * 64];
            kv.read_head(layer, plane, head, half.clone(), &mut rows);
            sink.write(layer, plane, head, half.start, &rows);
        }
    }
    sink.finish().unwrap();
    copy.commit(prefix.len()).unwrap();
    assert_eq!(planes(&kv), planes(&copy));
    let original = MODEL.logits(&mut kv.fork(300).unwrap(), suffix).unwrap();
    assert_eq!(original, MODEL.logits(&mut copy, suffix).unwrap(), "bit for bit");
}

#[test]
fn perplexity_of_plain_prose_is_sane() {
    let nats = quality::perplexity(&MODEL, &TOKENS).unwrap().ln();
    // Measured 3.946. A uniform guess costs ln 2048 = 7.62; the card says 3.40 on a held-out novel.
    assert!((3.9..4.0).contains(&nats), "{nats} nats per token");
}

#[test]
fn generation_is_deterministic_and_needs_only_a_prefix() {
    let prompt = &TOKENS[..120];
    let generate = |kv: &mut PagedKv, sampling| MODEL.generate_with_kv(kv, prompt, 12, &sampling).unwrap();
    let fresh = generate(&mut MODEL.new_kv().unwrap(), Sampling::Greedy);
    let full = MODEL.calculate_kv(prompt).unwrap();
    for held in [0, 17, 119, 120] {
        let mut kv = full.fork(held).unwrap();
        assert_eq!(generate(&mut kv, Sampling::Greedy), fresh, "{held} tokens cached");
        assert_eq!(kv.len(), prompt.len() + fresh.len() - 1);
    }
    let drawn =
        |seed| generate(&mut full.fork(120).unwrap(), Sampling::TopK { temperature: 1.0, top_k: 50, seed });
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
}

#[test]
fn holes_that_a_load_left_are_computed_in_place() {
    let tokens = &TOKENS[..300];
    let exact = MODEL.calculate_kv(tokens).unwrap();
    let mut kv = MODEL.new_kv().unwrap();
    kv.reserve(300).unwrap();
    let mut sink = kv.sink(0).unwrap();
    for (layer, plane, head) in
        (0..8).flat_map(|l| Plane::ALL.map(|p| (l, p))).flat_map(|(l, p)| [(l, p, 0), (l, p, 1)])
    {
        for part in [64..128, 192..256] {
            let mut rows = vec![0.0; 64 * 64];
            exact.read_head(layer, plane, head, part.clone(), &mut rows);
            sink.write(layer, plane, head, part.start, &rows);
        }
    }
    sink.finish().unwrap();
    let missing = [(0, 64), (128, 192), (256, 301)].map(|(start, end)| TokenRange { start, end });
    MODEL.complete_kv(&mut kv, tokens, &missing).unwrap();
    assert_eq!(kv.len(), 300);
    let difference = planes(&exact).iter().zip(planes(&kv)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference < 0.02, "f16 rounding of sums in another order: {difference}");
}

#[test]
fn a_batch_of_sequences_computes_what_each_alone_does() {
    let parts = [&TOKENS[..50], &TOKENS[100..101], &TOKENS[200..330]];
    let alone = parts.map(|part| {
        let logits = MODEL.logits(&mut MODEL.new_kv().unwrap(), part).unwrap();
        logits.row(part.len() - 1).to_vec()
    });
    let mut caches = parts.map(|_| MODEL.new_kv().unwrap());
    let mut items: Vec<StepItem> =
        caches.iter_mut().zip(parts).map(|(kv, tokens)| StepItem { kv, tokens }).collect();
    let together = MODEL.step(&mut items).unwrap();
    for (a, b) in alone.iter().zip(&together) {
        let difference = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(difference < LOGIT_TOLERANCE, "{difference}");
    }
    assert_eq!(caches.each_ref().map(PagedKv::len), [50, 1, 130]);
    let [a, b, _] = &mut caches;
    let bad = MODEL.step(&mut [StepItem { kv: a, tokens: &[1] }, StepItem { kv: b, tokens: &[9999] }]);
    assert!(matches!(bad, Err(EngineError::Token { token: 9999, .. })));
    assert_eq!((a.len(), b.len()), (50, 1), "no cache has grown");
}

#[test]
fn what_cannot_be_served_is_a_typed_error() {
    let mut kv = MODEL.new_kv().unwrap();
    assert!(matches!(MODEL.extend_kv(&mut kv, &[5, 2048]), Err(EngineError::Token { token: 2048, .. })));
    let long = vec![1; 1025];
    assert!(matches!(MODEL.calculate_kv(&long), Err(EngineError::ContextLength { tokens: 1025, .. })));
    let empty = MODEL.generate_with_kv(&mut kv, &[], 1, &Sampling::Greedy);
    assert!(matches!(empty, Err(EngineError::EmptyPrompt)));
    assert!(matches!(Model::load(std::path::Path::new("no/such/model")), Err(EngineError::Read { .. })));
}

#[test]
fn a_directory_loads_as_the_embedded_model_does() {
    let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/kvasir-tiny");
    let model = Model::load(std::path::Path::new(assets)).unwrap();
    assert_eq!(model.spec().model_id(), MODEL.spec().model_id());
    assert_eq!(model.tokenizer().decode(&TOKENS).unwrap(), include_str!("data/harbour.txt"));
}
