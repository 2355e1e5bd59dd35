//! At the end of a history its salt is rotated twice. The first time what is stored is kept: a replica is killed, and
//! then all have the new root and find what they found before. The second time nothing is kept: every replica switches
//! to the new root, finds nothing under the old ones, and finds the data stored under the new one.

use std::time::{Duration, Instant};

use kvasir_api::{LookupResponse, NamespaceRequest, NamespaceResponse, NamespaceRotation, routes};
use kvasir_tests::{chunks, service::Api};
use kvasir_types::RootHash;
use reqwest::{Method, StatusCode};
use tokio::time::sleep;

use super::{History, SERVED_AGAIN, SLOW, group::Group};

/// The replicas read salts every 5 s; the rest is for busy machines.
const KNOWN_TO_ALL: Duration = Duration::from_secs(60);
/// For how many seconds the first rotation keeps what is stored: longer than anybody looks for it.
const KEEP_S: u64 = 3_600;
/// Chunks of a context that is stored under the new root.
const CHUNK_TOKENS: usize = 256;

/// If the collector `may_evict` at any time, new data need not be found.
pub(super) async fn rotate(history: &History, group: &Group<'_>, may_evict: bool) {
    let kept = new_salt(history, group, KEEP_S).await;
    assert_ne!(kept, history.root);
    let disk = group.kill(0);
    group.begin(0, disk).await;
    all_know(group, "the new root", async |api: &Api| root_of(history, api).await == kept).await;
    history.find_stored(group).await;

    let root = new_salt(history, group, 0).await;
    assert!(root != kept && root != history.root);
    let has_switched =
        async |api: &Api| root_of(history, api).await == root && matched(history, api).await == 0;
    all_know(group, "nothing under the old roots", has_switched).await;
    if may_evict {
        return;
    }
    let (tokens, _) = &history.contexts[0];
    for chunk in chunks::context(root, tokens, CHUNK_TOKENS, 40) {
        let path = routes::chunk(&history.model_id, &chunk.seq_hash);
        let second = &group.live()[1].1;
        let stored = second.served(Method::PUT, &path, chunk.bytes).await;
        assert!(stored.status().is_success(), "{}", stored.status());
    }
    // Misses are remembered for a while.
    let stored = (tokens.len() / CHUNK_TOKENS * CHUNK_TOKENS) as u64;
    let finds_stored = async |api: &Api| matched(history, api).await >= stored;
    all_know(group, "what is stored under the new root", finds_stored).await;
}

/// Waits until every replica knows something. Its time begins anew after an answer that came late, because its store was slow.
async fn all_know(group: &Group<'_>, what: &str, knows: impl AsyncFn(&Api) -> bool) {
    let mut begun = Instant::now();
    for (life, api) in group.live() {
        let (first, mut asked) = (Instant::now(), Instant::now());
        while !knows(&api).await {
            if asked.elapsed() > SLOW {
                begun = Instant::now();
            }
            let is_late = begun.elapsed() > KNOWN_TO_ALL || first.elapsed() > SERVED_AGAIN + KNOWN_TO_ALL;
            assert!(!is_late, "{what}: {}", group.log(life));
            sleep(Duration::from_millis(100)).await;
            asked = Instant::now();
        }
    }
}

/// Rotates the salt, and gives the new root. A rotation whose answer was lost is followed by another one.
async fn new_salt(history: &History, group: &Group<'_>, keep_s: u64) -> RootHash {
    let (life, first) = &group.live()[0];
    let rotation = NamespaceRotation {
        namespace: history.namespace.parse().expect("a name"),
        model_id: history.model_id,
        keep_s: Some(keep_s),
    };
    let body = serde_json::to_vec(&rotation).expect("serialises");
    let answer = first.served(Method::POST, routes::NAMESPACE_ROTATION, body).await;
    assert_eq!(answer.status(), StatusCode::OK, "{}", group.log(*life));
    let NamespaceResponse { root } = answer.json().await.expect("its JSON");
    root
}

async fn root_of(history: &History, api: &Api) -> RootHash {
    let namespace = history.namespace.parse().expect("a name");
    let request = NamespaceRequest { namespace, model_id: history.model_id };
    let body = serde_json::to_vec(&request).expect("serialises");
    let answer = api.served(Method::POST, routes::NAMESPACES, body).await;
    let NamespaceResponse { root } = answer.json().await.expect("its JSON");
    root
}

/// Tokens of the first context that are found.
async fn matched(history: &History, api: &Api) -> u64 {
    let request = history.lookup_of(&history.contexts[0].0, true);
    let body = serde_json::to_vec(&request).expect("serialises");
    let answer = api.served(Method::POST, routes::LOOKUP, body).await;
    answer.json::<LookupResponse>().await.expect("its JSON").matched_tokens
}
