use kvasir_storage::hot::{EvictReason, HotCache, HotObserver, HotTier};

use super::*;

/// A tier with a frame in it, so that every gauge has a value.
fn hot_tier(metrics: &Metrics) -> Arc<HotTier> {
    let folder = tempfile::tempdir().expect("a folder");
    let shard = folder.path().join("hot/acme/00");
    std::fs::create_dir_all(&shard).expect("writable");
    std::fs::write(shard.join(format!("{:032x}-00000000-00000001-00", 1)), b"12345").expect("writable");
    let settings =
        crate::config::HotConfig::default().settings(kvasir_store::StoreKind::S3, folder.path(), None);
    HotTier::open(
        settings.expect("it is on"),
        crate::config::HotConfig::default().clock,
        metrics.hot().clone(),
    )
    .expect("opens")
}

/// Before the first load both are 0, so that the share of those in time is known when all miss it.
#[test]
fn loads_are_counted_from_the_start() {
    let text = String::from_utf8(Metrics::new().render()).expect("text");
    for slo in ["met", "missed"] {
        assert!(text.contains(&format!("kvasir_loads_total{{slo=\"{slo}\"}} 0\n")), "{slo}");
    }
    for result in ["loaded", "recomputed"] {
        assert!(text.contains(&format!("kvasir_load_tokens_total{{result=\"{result}\"}} 0\n")), "{result}");
    }
}

/// The page of metrics lists exactly those there are.
#[test]
fn every_metric_is_documented() {
    let metrics = Metrics::new();
    drop(metrics.request_begins());
    metrics.request_ends("/livez", "GET", 200, Duration::ZERO);
    metrics.request(StoreOp::Get, RequestOutcome::Ok, 1, Duration::ZERO);
    metrics.event(StoreEvent::Retried);
    metrics.api().lookup(1, 1);
    metrics.auth_refused("missing");
    metrics.throttled("requests_at_once");
    metrics.chunk_stored(true, 1);
    metrics.api().lookup_keys(1, 1);
    metrics.journal("appended", 1);
    metrics.collected(&GcReport::default(), false);
    let hot = HotCache::new(hot_tier(&metrics));
    let class = kvasir_eviction::ClassId::OTHER;
    metrics.hot().served(kvasir_types::Medium::Cpu, class, 1);
    metrics.hot().evicted(kvasir_types::Medium::Disk, EvictReason::Capacity, 1.0, 1.0);
    metrics.hot().refresh(&hot);
    metrics.scrubbed(&ScrubReport::default(), &ScrubReport::default());
    let bytes_by_level = [(kvasir_types::Level(0), 1)].into();
    metrics.api().load(&kvasir_api::LoadRecord {
        slo_ms: 1,
        elapsed_ms: 1,
        loaded_tokens: 1,
        recomputed_tokens: 1,
        bytes_by_level,
        direct_bytes: 0,
        tokens_by_level: [(kvasir_types::Level(0), 1)].into(),
        saved_gpu_ms: 1,
        timeline: None,
    });
    let names = |text: &str, start: &str| -> std::collections::BTreeSet<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(start));
        let names = lines.filter_map(|line| line.split([' ', '`']).next().map(str::to_owned));
        names.filter(|name| name.starts_with("kvasir_")).collect()
    };
    let text = String::from_utf8(metrics.render()).expect("text");
    let page = include_str!("../../docs/metrics.md");
    assert_eq!(names(&text, "# TYPE "), names(page, "| `"), "left: code, right: docs/metrics.md");
}
