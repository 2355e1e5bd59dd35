//! Lists of keys: compares them with the answers that other S3 servers give for the same keys.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kvasir_storage::{KeyListing, KeyPage, PutObject, Storage, gc::GcPolicy, hot::RequestHint};
use kvasir_types::ObjectKey;

use crate::{
    Backend,
    replicas::collect,
    storage_core::{body, name, tenant},
};

const KEYS: &[&str] =
    &["a", "a/", "a/b", "a/b/c", "a/b/d", "a/e", "ab", "a-", "b//c", "b/\u{1}", "ä/ö", "ä", "z<&>", "long/"];

async fn put(storage: &Arc<Storage>, key: &str, listed: bool) {
    let put = PutObject {
        tenant: tenant(),
        namespace: name("n"),
        key: key.parse().expect("a key"),
        bytes: key.len() as u64,
        hint: RequestHint::default(),
        listed,
        reservation: None,
    };
    storage.ingest().put_object(put, body(key.as_bytes())).await.expect("stores");
}

async fn page(storage: &Arc<Storage>, listing: &KeyListing) -> KeyPage {
    storage.reads().list_keys(&tenant(), &name("n"), listing).await.expect("lists")
}

fn keys(page: &KeyPage) -> Vec<&str> {
    page.objects.iter().map(|listed| listed.key.as_str()).collect()
}

/// The entries of a whole list, by S3's documentation: keys, and prefixes up to the delimiter, each once, in order.
fn expected(all: &BTreeSet<String>, listing: &KeyListing) -> Vec<String> {
    let asked = all.iter().filter(|key| key.starts_with(&listing.prefix) && **key > listing.start_after);
    let entry = |key: &String| match key[listing.prefix.len()..].find(&listing.delimiter) {
        Some(at) if !listing.delimiter.is_empty() => {
            key[..listing.prefix.len() + at + listing.delimiter.len()].to_owned()
        }
        _ => key.clone(),
    };
    asked.map(entry).collect::<BTreeSet<_>>().into_iter().collect()
}

pub(crate) async fn lists_are_in_order_and_whole(backend: &Backend) {
    let storage = backend.replica().await;
    let long = format!("long/{}", "ü".repeat(253));
    // A segment of the markers' paths has room for 125 bytes.
    let whole = (0..4).map(|n| format!("{}{}", "w".repeat(125), "x".repeat(n)));
    let all = KEYS.iter().map(|key| (*key).to_owned()).chain(whole).chain([long]);
    let all: BTreeSet<String> = all.collect();
    for key in &all {
        put(&storage, key, true).await;
    }
    let cold = backend.replica().await;
    for prefix in ["", "a", "a/", "a/b", "ä", "x", "long/üü"] {
        for delimiter in ["", "/", "b/"] {
            for start_after in ["", "a/b", "ab", "zz"] {
                let text = str::to_owned;
                let mut listing = KeyListing {
                    prefix: text(prefix),
                    delimiter: text(delimiter),
                    start_after: text(start_after),
                    ..KeyListing::default()
                };
                let expected = expected(&all, &listing);
                for limit in [1, 3, 100] {
                    (listing.limit, listing.after) = (limit, String::new());
                    let mut found = Vec::new();
                    loop {
                        let part = page(&cold, &listing).await;
                        let mut entries = part.common_prefixes.clone();
                        entries.extend(keys(&part).into_iter().map(str::to_owned));
                        assert!(entries.len() <= limit, "{listing:?}");
                        entries.sort();
                        found.extend(entries);
                        let Some(next) = part.next else { break };
                        assert_eq!(found.last(), Some(&next), "{listing:?}");
                        listing.after = next;
                    }
                    assert_eq!(found, expected, "{listing:?}");
                }
            }
        }
    }
    let none = page(&cold, &KeyListing::default()).await;
    assert!(none.objects.is_empty() && none.next.is_none(), "no entries were asked for");
}

pub(crate) async fn lists_have_what_can_be_read(backend: &Backend) {
    let storage = backend.replica().await;
    for key in ["kept", "again", "removed"] {
        put(&storage, key, true).await;
    }
    put(&storage, "hidden", false).await;
    let all = KeyListing { limit: 10, ..KeyListing::default() };
    let before = page(&storage, &all).await;
    assert_eq!(keys(&before), ["again", "kept", "removed"]);
    assert_eq!(before.objects.iter().map(|listed| listed.object.bytes()).collect::<Vec<_>>(), [5, 4, 7]);
    let remove = |key: &'static str| {
        let (storage, key) = (Arc::clone(&storage), key.parse::<ObjectKey>().expect("a key"));
        async move { storage.lifecycle().remove_object(&tenant(), &name("n"), &key).await.expect("removes") }
    };
    remove("removed").await;
    remove("again").await;
    put(&storage, "again", true).await;
    for replica in [Arc::clone(&storage), backend.replica().await] {
        assert_eq!(keys(&page(&replica, &all).await), ["again", "kept"]);
    }
    let markers = || backend.paths("/o/n/");
    assert_eq!(markers().await.len(), 2);
    // What the collector takes is not listed, and a pass later its markers are gone.
    collect(&storage, &GcPolicy { ttl: Some(Duration::ZERO), ..GcPolicy::default() }).await;
    assert_eq!(keys(&page(&backend.replica().await, &all).await), [""; 0]);
    put(&storage, "again", true).await;
    collect(&storage, &GcPolicy { grace: Duration::ZERO, ..GcPolicy::default() }).await;
    // A walk of folders may come to markers before it comes to tombstones: then they wait for a pass that does not.
    let left = markers().await.len();
    assert!(left == 1 || (backend.open().directory().is_some() && left <= 3), "{left} markers are left");
    assert_eq!(keys(&page(&backend.replica().await, &all).await), ["again"]);
}
