use std::time::Duration;

use super::{
    super::outcome::{ChunkEvent, LevelSize, Perplexity, QualityPoint, Ttft},
    *,
};
use kvasir_plot::markup::check_markup;

fn example() -> (Outcome, Evidence) {
    let level = |level: u8| LevelSize { level, bits_per_element: 0.1 * f64::from(level + 1), bytes: 25_000 };
    let chunk = |i: u8| ChunkEvent {
        level: (i != 2).then_some(i),
        bytes: 20_000,
        from: Duration::from_millis(100 * u64::from(i)),
        until: Duration::from_millis(100 * u64::from(i) + 90),
    };
    let point = |name: &str, bits_per_element, kl| QualityPoint {
        name: name.to_owned(),
        bits_per_element,
        kl,
        top1: 0.99,
        perplexity: 30.1,
    };
    let outcome = Outcome {
        tokens: 896,
        bytes_raw: 3_670_016,
        bytes_8bit: 1_892_352,
        bytes_stored: 100_000,
        bytes_fetched: 60_000,
        slo_ms: 500,
        slo_met: true,
        same_text: false,
        top1_agreement: 0.99,
        perplexity: Perplexity { full: 30.0, kvasir: 30.1 },
        ttft_ms: Ttft { kvasir: 400.0, recompute: 900.0, raw: 4000.0, int8: 2000.0 },
        levels: (0..4).map(level).collect(),
    };
    let evidence = Evidence {
        chunks: (0..4).map(chunk).collect(),
        link: vec![(0.0, 8.0), (0.2, 3.0), (9.0, 1.0)],
        link_name: "a <series>".to_owned(),
        measured: vec![(0.1, 7.5)],
        parts_ms: vec![("look up".to_owned(), 3.0)],
        qualities: vec![point("level 0", 0.1, 1e-2), point("8-bit", 8.25, 1e-5)],
        positions: 512,
        contexts: 4,
        kl: 1e-3,
        text_full: "a & b".to_owned(),
        text_kvasir: "a < b".to_owned(),
        chunk_tokens: 256,
    };
    (outcome, evidence)
}

#[test]
fn the_report_is_well_formed_and_shows_what_it_must() {
    let (outcome, evidence) = example();
    let html = html(&outcome, &evidence);
    let names = check_markup(&html).expect("well-formed");
    assert_eq!(names.iter().filter(|n| *n == "svg").count(), 3, "timeline, bars, size against quality");
    for needle in ["SLO 500 ms", "400 ms", "a &lt;series&gt;", "a &amp; b", "8-bit fetch", "level 0"] {
        assert!(html.contains(needle), "{needle}");
    }
    assert!(!html.contains("http"), "nothing from outside");
}

#[test]
fn the_table_has_every_figure_of_the_outcome() {
    let (outcome, evidence) = example();
    let table = table(&outcome, &evidence);
    for needle in [
        "896",
        "3670.0 kB",
        "1892.4 kB",
        "level 3",
        "TTFT recompute",
        "within the 500 ms SLO",
        "99.00 %",
        "no",
    ] {
        assert!(table.contains(needle), "{needle} in\n{table}");
    }
}

#[test]
fn the_sentence_says_what_happened() {
    let (mut outcome, mut evidence) = example();
    let said = |outcome: &Outcome, evidence: &Evidence, parts: [&str; 3]| {
        let sentence = summary(outcome, evidence);
        for part in parts {
            assert!(sentence.contains(part), "{part} in {sentence}");
        }
        assert!(table(outcome, evidence).contains(&sentence) && html(outcome, evidence).contains(&sentence));
    };
    said(
        &outcome,
        &evidence,
        ["within the 500 ms", "and 1 of 4 chunks were computed", "differ from those of"],
    );
    outcome.same_text = true;
    evidence.chunks[2].level = Some(0);
    said(
        &outcome,
        &evidence,
        ["after 400 ms", "60.0 kB came over the link instead of 3670.0 kB; the", "next are those of"],
    );
    (outcome.slo_met, outcome.ttft_ms.kvasir) = (false, 500.4);
    said(&outcome, &evidence, ["1 ms later than the 500 ms", "over the link", "next are those of"]);
    evidence.chunks.iter_mut().for_each(|chunk| chunk.level = None);
    said(&outcome, &evidence, ["later than", "all chunks were computed", "next are those of"]);
}

#[test]
fn the_json_has_exactly_the_documented_keys() {
    let json = serde_json::to_value(example().0).expect("serialises");
    let keys = |v: &serde_json::Value| {
        v.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ")
    };
    let documented = "tokens bytes_raw bytes_8bit bytes_stored bytes_fetched slo_ms slo_met same_text top1_agreement perplexity ttft_ms levels";
    let sorted = |text: &str| text.split(' ').map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(sorted(&keys(&json)), sorted(documented));
    assert_eq!(sorted(&keys(&json["perplexity"])), sorted("full kvasir"));
    assert_eq!(sorted(&keys(&json["ttft_ms"])), sorted("kvasir recompute raw int8"));
    assert_eq!(sorted(&keys(&json["levels"][0])), sorted("level bits_per_element bytes"));
}
