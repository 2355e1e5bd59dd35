//! Parts of a chunk, over the whole service: what is sent, what the store is asked for, and the table in docs/api.md.

use kvasir_api::routes;
use kvasir_container::{ChunkBuilder, ChunkMeta, Head, SectionId};
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks,
    service::{Service, expect_problem},
};
use kvasir_types::{Level, ModelId, ObjectDigest, ProfileHash, RootHash, SPAN_TOKENS, SeqHash, TokenChain};
use reqwest::{Method, StatusCode};
use tempfile::TempDir;

/// Scopes of four layers of a model of 32, as a direct profile has them.
const SCOPES: usize = 8;
const LEVELS: u8 = 4;
const TOKENS: usize = 1536;

/// A chunk of 1,536 tokens of the shape of an 8B model's: 8 scopes, 4 levels, pieces growing with the level.
fn large(root: RootHash, tokens: &[u32]) -> (Vec<u8>, SeqHash) {
    let chain = TokenChain::new(root, tokens);
    let link = chain.link(0).expect("the start");
    let mut meta = ChunkMeta::new(chunks::spec().model_id(), ProfileHash::of(chunks::PROFILE), link);
    meta.level_count = LEVELS;
    let mut builder = ChunkBuilder::new(meta, tokens.to_vec()).expect("within limits");
    for level in 0..LEVELS {
        for scope in 0..SCOPES {
            let bytes = 9_000 << level.min(2);
            let piece = |span| Some(chunks::piece(level * 16 + scope as u8, span, bytes));
            let id = SectionId { scope: scope as u16, band: 0, level: Level(level), flags: 0 };
            builder.section(id, (0..TOKENS / SPAN_TOKENS).map(piece).collect()).expect("within limits");
        }
    }
    let bytes = builder.finish().expect("in order");
    (bytes, *chain.blocks().last().expect("not empty"))
}

/// Requests to the store so far.
async fn store_gets(service: &Service) -> u64 {
    let metrics = service.metrics().await;
    let gets = metrics.lines().filter(|line| line.starts_with("kvasir_store_requests_total{op=\"get\""));
    gets.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// What a selection should be: the head and the selected pieces, cut from the object.
fn expected(object: &[u8], head: &Head, takes: impl Fn(usize, usize) -> bool) -> Vec<u8> {
    let mut out = object[..head.header.head_bytes() as usize].to_vec();
    for (section, span, piece) in head.pieces() {
        if takes(section, span) {
            out.extend(&object[piece.range.start as usize..piece.range.end as usize]);
        }
    }
    out
}

async fn started(directory: &TempDir) -> (Service, ModelId, Vec<u8>, SeqHash) {
    let url = format!("file://{}/store", directory.path().display());
    let service = Service::start(StoreConfig::new(url.parse().expect("a url")), directory.path()).await;
    let (model_id, root) = service.prepare("n").await;
    let (object, seq_hash) = large(root, &chunks::tokens(40, TOKENS));
    let put = service.send(Method::PUT, &routes::chunk(&model_id, &seq_hash), object.clone()).await;
    assert_eq!(put.status(), StatusCode::CREATED);
    (service, model_id, object, seq_hash)
}

/// Which pieces, by section and span, a selection wants.
type Wanted<'a> = Box<dyn Fn(usize, usize) -> bool + 'a>;

#[tokio::test]
#[allow(clippy::print_stdout, reason = "the table of docs/api.md; --nocapture shows it")]
async fn the_table_of_gets_and_bytes() {
    let directory = TempDir::new().expect("a directory");
    let (service, model_id, object, seq_hash) = started(&directory).await;
    let head = Head::parse(&object).expect("sound");
    let path = routes::chunk_object(&model_id, &seq_hash, &ObjectDigest::of(&object));
    let level = |section: usize| head.sections()[section].level.0;
    let scope = |section: usize| head.sections()[section].scope;
    let four_layers: Vec<String> =
        (0..head.sections().len()).filter(|&s| scope(s) == 3).map(|s| s.to_string()).collect();
    let four_layers = format!("?sections={}", four_layers.join(","));
    let rows: [(&str, &str, Wanted); 6] = [
        ("everything", "", Box::new(|_, _| true)),
        ("one level (0)", "?level=0", Box::new(move |s, _| level(s) == 0)),
        ("300 tokens", "?tokens=300", Box::new(|_, span| span < 2)),
        ("300 tokens, level 0", "?tokens=300&level=0", Box::new(move |s, span| level(s) == 0 && span < 2)),
        ("four layers", &four_layers, Box::new(move |s, _| scope(s) == 3)),
        ("four layers, 300 tokens", "", Box::new(move |s, span| scope(s) == 3 && span < 2)),
    ];
    println!("| read | client's GETs | store's GETs | bytes | of the object |\n|---|---|---|---|---|");
    let mut sizes = Vec::new();
    for (i, (what, query, takes)) in rows.iter().enumerate() {
        let query = if i == 5 { format!("{four_layers}&tokens=300") } else { (*query).to_owned() };
        let before = store_gets(&service).await;
        let response = service.get(&format!("{path}{query}"), &[]).await;
        assert_eq!(response.status(), StatusCode::OK, "{what}");
        let told = response.content_length();
        let bytes = response.bytes().await.expect("reads");
        assert!(bytes == expected(&object, &head, takes), "{what}");
        assert_eq!(told, Some(bytes.len() as u64), "{what}");
        let gets = store_gets(&service).await - before;
        let part = bytes.len() as f64 / object.len() as f64 * 100.0;
        println!("| {what} | 1 | {gets} | {} | {part:.1} % |", bytes.len());
        assert!(gets <= 33, "{what}: {gets}");
        sizes.push(bytes.len());
    }
    assert!(sizes[2] * 5 < sizes[0] * 2 && sizes[5] < sizes[4] && sizes[4] * 6 < sizes[0]);
    service.stop().await;
}

#[tokio::test]
async fn selections_are_representations_of_their_own() {
    let directory = TempDir::new().expect("a directory");
    let (service, model_id, object, seq_hash) = started(&directory).await;
    let head = Head::parse(&object).expect("sound");
    let path = routes::chunk_object(&model_id, &seq_hash, &ObjectDigest::of(&object));
    let selected = expected(&object, &head, |section, span| section < 3 && span < 1);
    let query = format!("{path}?tokens=1&sections=0-2");
    let etag = {
        let response = service.send(Method::HEAD, &query, "").await;
        assert_eq!(response.headers()["content-length"], selected.len().to_string().as_str());
        response.headers()["etag"].to_str().expect("text").to_owned()
    };
    assert_ne!(etag, format!("\"{}\"", ObjectDigest::of(&object)));
    let response = service.get(&query, &[("if-none-match", &etag)]).await;
    assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
    for (range, from, to) in [("bytes=10-5000", 10, 5001), ("bytes=-7", selected.len() - 7, selected.len())] {
        let response = service.get(&query, &[("range", range)]).await;
        assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
        let told = format!("bytes {from}-{}/{}", to - 1, selected.len());
        assert_eq!(response.headers()["content-range"], told.as_str());
        assert!(response.bytes().await.expect("reads") == selected[from..to]);
    }
    for (query, code) in
        [("?tokens=0", "bad_request"), ("?sections=x", "bad_request"), ("?level=9&tokens=3", "unknown_level")]
    {
        expect_problem(service.get(&format!("{path}{query}"), &[]).await, code).await;
    }
    service.stop().await;
}

#[tokio::test]
async fn chunks_are_looked_up_by_their_ids() {
    let directory = TempDir::new().expect("a directory");
    let url = format!("file://{}/store", directory.path().display());
    let store = StoreConfig::new(url.parse().expect("a url"));
    let service = Service::start(store.clone(), directory.path()).await;
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(41, 5 * 512 + 100);
    let context = chunks::context(root, &tokens, 512, 50);
    for chunk in &context {
        service.put(&model_id, chunk).await;
    }
    let mut ids: Vec<SeqHash> = context.iter().map(|chunk| chunk.seq_hash).collect();
    let ask = async |service: &Service, ids: &[SeqHash]| {
        let json =
            serde_json::json!({ "model_id": model_id, "namespace": "n", "chunk_ids": ids, "fresh": true });
        let response = service.send(Method::POST, routes::LOOKUP, json.to_string()).await;
        response.json::<kvasir_api::LookupResponse>().await.expect("its JSON")
    };
    let found = ask(&service, &ids).await;
    assert_eq!((found.matched_tokens, found.chunks.len()), (tokens.len() as u64, 6));
    assert_eq!(found, service.lookup_tokens(model_id, &tokens).await);
    // Without an index they come from the store.
    let other = Service::start(store, &directory.path().join("other")).await;
    other.prepare("n").await;
    assert_eq!(ask(&other, &ids).await.matched_tokens, tokens.len() as u64);
    other.stop().await;
    // Not where they do not follow each other.
    ids.swap(2, 3);
    assert_eq!(ask(&service, &ids).await.matched_tokens, 1024);
    assert_eq!(ask(&service, &ids[1..]).await.matched_tokens, 0);
    service.stop().await;
}
