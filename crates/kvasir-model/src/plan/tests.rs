use super::*;

fn named(name: &str) -> ModelPreset {
    preset(name).unwrap_or_else(|| panic!("no preset {name}")).clone()
}

#[test]
fn sizes_are_the_published_ones() {
    let kib = |name: &str, tokens| bytes_at(&named(name), tokens).fp16 as f64 / 1024.0;
    assert_eq!(kib("llama-2-7b", 1), 512.0, "0.5 MB a token");
    assert_eq!(kib("llama-3-8b", 1), 128.0, "GQA: a quarter");
    assert_eq!(kib("qwen2-7b", 16), 0.875 * 1024.0, "16 tokens of Qwen2-7B: 0.875 MB (ATC'25)");
    assert!((kib("bloom-176b", 1) / 1024.0 - 3.83).abs() < 0.01, "about 4 MB a token");
    assert_eq!(kib("deepseek-v3", 1) * 1024.0, 61.0 * 576.0 * 2.0, "latent and rotary key, once");
    assert_eq!(kib("falcon-7b", 1), 8.0, "MQA");
    assert_eq!(kib("mistral-7b-v0.1", 8192), kib("mistral-7b-v0.1", 4096), "a window stops growing");
    assert_eq!(kib("gemma-2-9b", 8192), kib("gemma-2-9b", 4096) * 1.5, "half of the layers have a window");
    let tiny = bytes_at(&named("kvasir-tiny"), 1);
    assert_eq!((tiny.fp16, tiny.fp8, tiny.int4), (4096, 2048, 1024));
}

#[test]
fn prefill_counts_weights_and_causal_attention() {
    let model = named("llama-3-8b");
    let one = prefill_flops(&model, 1);
    assert!((one / (2.0 * 8.03e9) - 1.0).abs() < 1e-4);
    let many = prefill_flops(&model, 8192);
    let attention = 32.0 * 4.0 * 4096.0 * 8192f64.powi(2) / 2.0;
    assert!((many - 8192.0 * 2.0 * 8.03e9 - attention).abs() / many < 1e-12);
    let full = prefill_flops(&named("mistral-7b"), 32768);
    assert!(prefill_flops(&named("mistral-7b-v0.1"), 32768) < full, "a window saves attention");
}

fn request(bandwidth: f64, slo: Option<f64>) -> Request {
    let level = |bits| LevelRate { bits_per_element: Rate::assumed(bits), kl: None };
    Request {
        model: named("llama-2-7b"),
        tokens: 4096,
        chunk_tokens: 1536,
        bandwidths: vec![Rate::assumed(bandwidth), Rate::assumed(1e12)],
        slo,
        levels: vec![level(0.5), level(1.0), level(2.0)],
        deployment: Deployment::on(*gpu("a40").expect("listed")),
    }
}

#[test]
fn the_level_that_fits_is_the_finest_in_time() {
    // 2 GiB of fp16: levels of 64, 128, 256 MiB; at 3 Gb/s 0.18, 0.36, 0.72 s (+ 0.03). Recomputing: 0.80 s.
    let choice = |slo| {
        let link = plan(request(3e9, Some(slo))).links.swap_remove(0);
        link.fits.map(|i| link.ways[i].name.clone())
    };
    assert_eq!(choice(0.1), None);
    assert_eq!(choice(0.25).as_deref(), Some("level 0"));
    assert_eq!(choice(0.5).as_deref(), Some("level 1"));
    assert_eq!(choice(0.76).as_deref(), Some("level 2"));
    assert_eq!(choice(2.0).as_deref(), Some("recompute"));
    let open = plan(request(3e9, None));
    assert!(open.links.iter().all(|l| l.fits.is_none() && l.ways.iter().all(|way| way.within_slo.is_none())));
    let fast = &plan(request(3e9, Some(0.1))).links[1];
    assert_eq!(
        fast.fits.map(|i| fast.ways[i].name.as_str()),
        Some("level 2"),
        "a link of 1 Tb/s waits for the decoder"
    );
    assert_eq!(open.bytes_stored, 256 << 20, "all levels cost what the finest costs");
}

#[test]
fn a_level_takes_as_long_as_its_measured_decoder() {
    // 2 GiB of fp16 over 1 Tb/s, which no level waits for: at 10, 1 and 0.1 GB/s 0.21, 2.1 and 21 s (+ 0.03).
    let mut measured = request(3e9, Some(0.5));
    measured.deployment.decode_rates = [10e9, 1e9, 0.1e9].map(Rate::measured).to_vec();
    let answer = plan(measured.clone());
    let link = &answer.links[1];
    assert_eq!(link.fits, Some(0), "the assumed decoder would make the finest level fit");
    for (way, rate) in link.ways.iter().zip([10e9, 1e9, 0.1e9]) {
        assert!((way.seconds - 0.03 - answer.bytes.fp16 as f64 / rate).abs() < 1e-9, "{way:?}");
    }
    measured.deployment.decode_rates.truncate(1);
    let assumed = plan(measured);
    let way = &assumed.links[1].ways[1];
    assert!((way.seconds - 0.03 - answer.bytes.fp16 as f64 / 50e9).abs() < 1e-9, "{way:?}");
}

#[test]
fn keeping_pays_above_the_break_even() {
    let answer = plan(request(3e9, None));
    let reuses = answer.break_even_reuses.expect("recomputing costs more than three reads");
    let monthly = |n: f64| answer.month_cost + n * answer.load_cost - n * answer.recompute_cost;
    assert!(monthly(reuses).abs() < 1e-12 && monthly(reuses * 1.1) < 0.0 && monthly(reuses * 0.9) > 0.0);
    let mut dear = request(3e9, None);
    dear.deployment.gigabyte_read = Rate::assumed(10.0);
    assert_eq!(plan(dear).break_even_reuses, None);
}

#[test]
fn presets_are_distinct_and_sourced() {
    let names: std::collections::BTreeSet<_> = presets().iter().map(|p| p.name.as_ref()).collect();
    assert_eq!(names.len(), presets().len());
    assert!(presets().iter().all(|p| !p.source.is_empty() && p.active_parameters > 0.0 && p.context > 0));
}
