//! Buckets that earlier versions wrote, and that every later one must read, list, serve, index anew and collect without loss.
//!
//! `tests/golden-buckets/VERSION/{plain,sealed}` each hold a bucket as a folder and what is in it (`expected.json`). A bucket is
//! never changed. A version that writes something new adds a folder of its own:
//! `KVASIR_WRITE_GOLDEN=1.1 cargo test -p kvasir-tests --test e2e golden_bucket`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use kvasir_api::{ContextRequest, routes};
use kvasir_client::{
    Client, ClientConfig, KvClient, LoadOptions,
    fetcher::{Fixed, RecomputeModel},
};
use kvasir_codec::{
    CpuDecoder, CpuEncoder, KvBuffer, Profile,
    train::{Recipe, TrainingContext, train},
};
use kvasir_server::Config;
use kvasir_storage::store::StoreConfig;
use kvasir_tests::service::Service;
use kvasir_types::{KvDtype, KvLayout, LayerKv, Level, ModelSpec, Pairing, Reuse, Rope};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

const NAMESPACE: &str = "golden";
const KEYS: &str = "[[key]]\ntenant = \"default\"\nid = \"golden\"\nkey = \"6b76617369722d676f6c64656e2d6275636b65742d6b65792d666f722d74657374\"\n";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-buckets")
}

fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 8 }, rope: Some(0) };
    ModelSpec {
        weights: "golden".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: vec![Rope::plain(Pairing::Half, 8, 10_000.0)],
        layers: vec![layer; 4],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

fn tokens(count: u32, seed: u32) -> Vec<u32> {
    (0..count).map(|i| (i + seed * 10_007).wrapping_mul(2_654_435_761) >> 7 & 31).collect()
}

fn kv(tokens: &[u32]) -> KvBuffer {
    let mut buffer = KvBuffer::new(&spec(), tokens.len());
    for (i, value) in buffer.as_mut_slice().iter_mut().enumerate() {
        let token = tokens[i / 8 % tokens.len()] as f32;
        *value = (token * 0.37 + (i % 8) as f32).sin() + ((i * 7919 % 1009) as f32 / 1009.0 - 0.5) * 0.3;
    }
    buffer
}

/// Two contexts that share 512 tokens, and one that is removed.
fn contexts() -> BTreeMap<&'static str, Vec<u32>> {
    let fork = [&tokens(700, 1)[..512], &tokens(300, 2)[..]].concat();
    BTreeMap::from([("kept", tokens(700, 1)), ("fork", fork), ("removed", tokens(256, 3))])
}

fn store(bucket: &Path) -> StoreConfig {
    StoreConfig::new(format!("file://{}", bucket.display()).parse().expect("a url"))
}

fn settings(config: &mut Config, home: &Path, is_sealed: bool) {
    let keys = home.join("keys.toml");
    fs::write(&keys, KEYS).expect("writes");
    config.keys_file = is_sealed.then_some(keys);
    config.gc.policy.grace = std::time::Duration::ZERO;
    config.gc.policy.tombstone_retention = std::time::Duration::ZERO;
    config.storage.direct.enabled = false;
}

async fn serve(bucket: &Path, home: &Path, cache: &str, is_sealed: bool) -> Service {
    Service::start_with(store(bucket), &home.join(cache), |config| settings(config, home, is_sealed)).await
}

async fn client(service: &Service, profile: &Arc<Profile>) -> KvClient {
    let spec = Arc::new(spec());
    let client = Client::new(
        format!("http://{}", service.address).parse().expect("a url"),
        ClientConfig::default(),
    )
    .expect("a client");
    let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(profile)).expect("of this model");
    let decoder = CpuDecoder::new(Arc::clone(&spec), Arc::clone(profile)).expect("of this model");
    let namespace = NAMESPACE.parse().expect("a name");
    let kv = KvClient::new(client, spec, namespace, Arc::new(encoder), Arc::new(decoder)).await.expect("connects");
    kv.with_chunk_tokens(256).expect("allowed")
}

/// How much is matched, and the BLAKE3 of what is decoded at each level.
async fn read(client: &KvClient, tokens: &[u32], levels: usize) -> Value {
    let plan = client.lookup(tokens).await.expect("an answer");
    let matched = plan.matched_tokens();
    let mut decoded = Vec::new();
    for level in 0..if matched == 0 { 0 } else { levels } {
        let never = RecomputeModel::from_seconds(1e6, 1e3, 0.0).on_gpus(0);
        let mut options = LoadOptions::new(std::time::Duration::from_secs(60), never);
        options.policy = Box::new(Fixed::new(Level(level as u8)));
        let mut back = KvBuffer::new(&spec(), matched as usize);
        let report = client.get_kv(&plan, options, &mut back).await.expect("loads");
        assert_eq!((report.loaded_tokens(), report.failures.len()), (matched, 0), "{report:?}");
        let bits: Vec<u8> = back.as_slice().iter().flat_map(|value| value.to_bits().to_le_bytes()).collect();
        decoded.push(blake3::hash(&bits).to_hex().to_string());
    }
    json!({"matched": matched, "decoded": decoded})
}

async fn read_all(service: &Service, profile: &Arc<Profile>) -> Value {
    let client = client(service, profile).await;
    let mut found = serde_json::Map::new();
    for (name, tokens) in contexts() {
        found.insert(name.to_owned(), read(&client, &tokens, profile.level_count()).await);
    }
    found.into()
}

/// What a later version sees, beside what it reads.
async fn listed(service: &Service) -> Value {
    let contexts: Value = service.get(routes::CONTEXTS, &[]).await.json().await.expect("its JSON");
    let contexts = contexts["contexts"].as_array().expect("a list").iter();
    let named: Vec<_> = contexts.map(|c| json!([c["version"], c["labels"], c["pinned"], c["chunks"]])).collect();
    json!({"contexts": named})
}

#[tokio::test]
async fn golden_buckets_of_all_versions() {
    if let Ok(version) = std::env::var("KVASIR_WRITE_GOLDEN") {
        for (kind, is_sealed) in [("plain", false), ("sealed", true)] {
            write(&folder().join(&version).join(kind), is_sealed).await;
        }
    }
    let mut seen = 0;
    for version in fs::read_dir(folder()).expect("lists").map(|entry| entry.expect("an entry").path()) {
        for (kind, is_sealed) in [("plain", false), ("sealed", true)].iter().filter(|_| version.is_dir()) {
            holds(&version.join(kind), *is_sealed).await;
            seen += 1;
        }
    }
    assert!(seen >= 2, "the buckets of version 1.0 are there");
}

async fn holds(golden: &Path, is_sealed: bool) {
    let expected: Value =
        serde_json::from_slice(&fs::read(golden.join("expected.json")).expect("is there")).expect("JSON");
    let profile = Profile::from_bytes(&fs::read(golden.join("profile.kvp")).expect("is there"));
    let profile = Arc::new(profile.expect("every later version reads it"));
    let home = TempDir::new().expect("a directory");
    let bucket = home.path().join("bucket");
    copy(&golden.join("bucket"), &bucket);

    // With nothing but the bucket.
    let service = serve(&bucket, home.path(), "cold", is_sealed).await;
    assert_eq!(read_all(&service, &profile).await, expected["read"], "{}", golden.display());
    assert_eq!(listed(&service).await, expected["listed"], "{}", golden.display());
    // New chunks beside the old ones; then a collection that may take what was removed and nothing else, and a scrub.
    let more = tokens(300, 9);
    client(&service, &profile).await.store_kv(&more, &kv(&more), |_| ()).await.expect("stores");
    service.job(r#"{"kind": "gc"}"#).await;
    let scrubbed = service.job(r#"{"kind": "scrub"}"#).await;
    assert_eq!(scrubbed.counts.get("quarantined"), Some(&0), "{scrubbed:?}");
    assert_eq!(read_all(&service, &profile).await, expected["read"], "after a collection: {}", golden.display());
    service.stop().await;

    // With an index that was built from it.
    let mut config = Config::embedded(&home.path().join("rebuilt")).expect("a path");
    config.store = store(&bucket);
    settings(&mut config, home.path(), is_sealed);
    let rebuilt = kvasir_server::rebuild_index(&config, |_| ()).await.expect("rebuilds");
    assert_eq!(rebuilt.objects, expected["objects"].as_u64().expect("a number") + 2);
    let service = serve(&bucket, home.path(), "rebuilt", is_sealed).await;
    assert_eq!(read_all(&service, &profile).await, expected["read"], "after a rebuild: {}", golden.display());
    service.stop().await;
}

/// Writes a bucket as this version does.
async fn write(golden: &Path, is_sealed: bool) {
    assert!(!golden.exists(), "{} is there: golden buckets are never changed", golden.display());
    let bucket = golden.join("bucket");
    fs::create_dir_all(&bucket).expect("makes it");
    let home = TempDir::new().expect("a directory");
    let text = tokens(1024, 99);
    let training = TrainingContext { kv: kv(&text), tokens: text };
    let profile = train(&spec(), &[training], &Recipe::Direct, &mut |_, _| ()).expect("trains");
    fs::write(golden.join("profile.kvp"), profile.to_bytes()).expect("writes");
    let profile = Arc::new(profile);

    let service = serve(&bucket, home.path(), "cache", is_sealed).await;
    let engine = client(&service, &profile).await;
    engine.client().put_profile(&engine.model_id(), profile.to_bytes()).await.expect("stores");
    let mut chunks = BTreeMap::new();
    for (name, tokens) in contexts() {
        let stored = engine.store_kv(&tokens, &kv(&tokens), |_| ()).await.expect("stores");
        chunks.insert(name, stored.chunks.iter().map(|chunk| chunk.seq_hash).collect::<Vec<_>>());
    }
    let request: ContextRequest = serde_json::from_value(json!({"model_id": engine.model_id(), "namespace": NAMESPACE,
        "chunks": chunks["kept"], "labels": {"app": "chat"}, "pinned": true}))
    .expect("a request");
    let context = engine.client().create_context(&request).await.expect("creates");
    let change = json!({"labels": {"app": "chat", "stage": "two"}}).to_string();
    let changed = service.send(Method::PATCH, &routes::context(&context.context_id), change).await;
    assert_eq!(changed.status(), StatusCode::OK);
    let removed = routes::chunk(&engine.model_id(), &chunks["removed"][0]);
    assert!(service.send(Method::DELETE, &removed, "").await.status().is_success());
    let expected = json!({
        "written_by": env!("CARGO_PKG_VERSION"),
        "read": read_all(&service, &profile).await,
        "listed": listed(&service).await,
        // Kept: 3 chunks. Fork: 2 of its own behind the shared ones. The removed one is under a tombstone.
        "objects": 5,
    });
    // The journal's last batch goes with the shutdown.
    service.stop().await;
    let json = serde_json::to_string_pretty(&expected).expect("serialises") + "\n";
    fs::write(golden.join("expected.json"), json).expect("writes");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("makes it");
    for entry in fs::read_dir(from).expect("lists").map(|entry| entry.expect("an entry")) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copies");
        }
    }
}
