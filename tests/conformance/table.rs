//! Determines the semantics of each store, from the bare backend without the layer that retries and reads
//! back.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future::join_all};
use kvasir_tests::s3::{Conditions, Lacks};
use object_store::{
    Error, GetOptions, GetRange, ObjectStoreExt, PutMode, PutPayload, UpdateVersion, path::Path,
};

use crate::Backend;

/// A question and its answer for one store.
type Row = (&'static str, bool);

fn path(backend: &Backend, name: &str) -> Path {
    backend.open().layout().base().clone().join("table").join(name)
}

fn refused<T>(result: &object_store::Result<T>) -> bool {
    matches!(
        result,
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. })
    )
}

async fn writes(backend: &Backend) -> Vec<Row> {
    let store = backend.open().objects().clone();
    let at = path(backend, "create");
    let create = |text: &'static str| store.put_opts(&at, text.into(), PutMode::Create.into());
    let in_turn = create("one").await.is_ok() && refused(&create("two").await);
    let mut at_once = true;
    for round in 0..20 {
        let at = path(backend, &format!("race-{round}"));
        let race = (0..8).map(|i| {
            let (store, at, text) = (store.clone(), at.clone(), format!("writer {i}"));
            async move { store.put_opts(&at, text.into(), PutMode::Create.into()).await.is_ok() }
        });
        at_once &= join_all(race).await.into_iter().filter(|won| *won).count() == 1;
    }
    let etag = store.head(&at).await.expect("is there").e_tag;
    let update = |e_tag: Option<String>| {
        let mode = PutMode::Update(UpdateVersion { e_tag, version: None });
        store.put_opts(&at, "three".into(), mode.into())
    };
    let current = update(etag).await.is_ok();
    let stale = refused(&update(Some("\"0123456789abcdef0123456789abcdef\"".to_owned())).await);
    let empty = path(backend, "empty");
    store.put(&empty, PutPayload::new()).await.expect("writes");
    let missing = store.delete(&path(backend, "missing")).await.is_ok();
    vec![
        ("create refused where the key is there", in_turn),
        ("one of 8 creates at once wins, 20 times", at_once),
        ("update with the current ETag succeeds", current),
        ("update with another ETag is refused", stale),
        ("empty objects", store.head(&empty).await.is_ok_and(|meta| meta.size == 0)),
        ("deleting what is not there succeeds", missing),
    ]
}

async fn reads(backend: &Backend) -> Vec<Row> {
    let store = backend.open().objects().clone();
    let at = path(backend, "read");
    let bytes = Bytes::from((0..50_000u32).map(|i| (i * 7) as u8).collect::<Vec<_>>());
    store.put(&at, bytes.clone().into()).await.expect("writes");
    let get = |options: GetOptions| async {
        let found = store.get_opts(&at, options).await?;
        found.bytes().await
    };
    let range = |range: GetRange| GetOptions { range: Some(range), ..GetOptions::default() };
    let is = |found: object_store::Result<Bytes>, expected: Bytes| found.is_ok_and(|b| b == expected);
    let other = Some("\"0123456789abcdef0123456789abcdef\"".to_owned());
    let etag = store.head(&at).await.expect("is there").e_tag;
    let if_match = |e: Option<String>| GetOptions { if_match: e, ..GetOptions::default() };
    let if_none = |e: Option<String>| GetOptions { if_none_match: e, ..GetOptions::default() };
    vec![
        ("a range past the end is cut", is(get(range((49_000..60_000).into())).await, bytes.slice(49_000..))),
        ("a range behind the end is refused", get(range((50_000..50_001).into())).await.is_err()),
        ("a suffix range", is(get(range(GetRange::Suffix(9))).await, bytes.slice(49_991..))),
        ("ETag", etag.is_some()),
        ("If-Match on reads", refused(&get(if_match(other)).await)),
        ("If-None-Match on reads", refused(&get(if_none(etag)).await)),
    ]
}

async fn listings(backend: &Backend) -> Vec<Row> {
    let store = backend.open().objects().clone();
    let folder = path(backend, "list");
    let names: BTreeSet<String> = (0..1_100).map(|i| format!("{:05}", i * 7919 % 100_000)).collect();
    let list = names.iter().map(|name| folder.clone().join(name.as_str()));
    let written = futures::stream::iter(list).for_each_concurrent(32, |at| {
        let store = store.clone();
        async move { drop(store.put(&at, "x".into()).await.expect("writes")) }
    });
    written.await;
    let listed: Vec<_> = store.list(Some(&folder)).try_collect().await.expect("lists");
    let listed: Vec<String> =
        listed.iter().filter_map(|m| m.location.filename().map(str::to_owned)).collect();
    let middle = folder.clone().join("05000");
    let behind: Vec<_> = store.list_with_offset(Some(&folder), &middle).try_collect().await.expect("lists");
    let expected = names.iter().filter(|name| name.as_str() > "05000").count();
    // A write, a deletion and an overwrite, each seen by the next request.
    let mut consistent = true;
    for round in 0..20 {
        let at = folder.clone().join(format!("x{round}"));
        for text in ["one", "two"] {
            store.put(&at, text.into()).await.expect("writes");
            let read = store.get(&at).await.expect("is there").bytes().await.expect("reads");
            consistent &= read == text;
        }
        store.delete(&at).await.expect("deletes");
        consistent &= matches!(store.head(&at).await, Err(Error::NotFound { .. }));
    }
    let (a, b) = (folder.clone().join("time-a"), folder.clone().join("time-b"));
    store.put(&a, "a".into()).await.expect("writes");
    tokio::time::sleep(Duration::from_millis(20)).await;
    store.put(&b, "b".into()).await.expect("writes");
    let time = |meta: object_store::ObjectMeta| meta.last_modified;
    let (a, b) = (store.head(&a).await.expect("is there"), store.head(&b).await.expect("is there"));
    vec![
        ("1,100 keys are listed once each", listed.iter().cloned().collect::<BTreeSet<_>>() == names),
        ("listings are in the order of keys", listed.is_sorted()),
        ("a listing begins behind a key", behind.len() == expected),
        ("every request sees what was done before", consistent),
        ("times of writes 20 ms apart differ", time(a) < time(b)),
    ]
}

async fn parts(backend: &Backend) -> Vec<Row> {
    let store = backend.open().objects().clone();
    let mut rows = Vec::new();
    for (name, completes) in [("parts: invisible until completed", true), ("parts: gone when aborted", false)]
    {
        let at = path(backend, if completes { "completed" } else { "aborted" });
        let mut upload = store.put_multipart(&at).await.expect("starts");
        upload.put_part(vec![7u8; 5 << 20].into()).await.expect("sends");
        upload.put_part("end".into()).await.expect("sends");
        let hidden = store.head(&at).await.is_err();
        let size = match completes {
            true => {
                upload.complete().await.expect("completes");
                store.head(&at).await.map(|meta| meta.size).ok() == Some((5 << 20) + 3)
            }
            false => {
                upload.abort().await.expect("aborts");
                store.head(&at).await.is_err()
            }
        };
        rows.push((name, hidden && size));
    }
    // Readers beside a writer of the same key: always one of the two, whole.
    let at = path(backend, "torn");
    let whole = |fill: u8| Bytes::from(vec![fill; 1 << 20]);
    store.put(&at, whole(1).into()).await.expect("writes");
    let writer = async {
        for fill in [2, 1, 2, 1] {
            store.put(&at, whole(fill).into()).await.expect("writes");
        }
    };
    let reader = async {
        let mut sound = true;
        for _ in 0..12 {
            // A read that fails because the object changed is no torn one.
            let Ok(found) = store.get(&at).await else { continue };
            if let Ok(read) = found.bytes().await {
                sound &= read == whole(1) || read == whole(2);
            }
        }
        sound
    };
    rows.push(("a read beside a write is never torn", tokio::join!(writer, reader).1));
    rows
}

#[tokio::test]
async fn the_table_of_semantics() {
    let mut backends = vec![
        Backend::file(),
        Backend::memory(),
        Backend::s3("in-process S3", Lacks::default()).await,
        Backend::s3(
            "in-process S3, careless",
            Lacks { conditional_writes: Conditions::Ignored, ..Lacks::default() },
        )
        .await,
    ];
    backends.extend(Backend::real("table"));
    let mut columns = Vec::new();
    for backend in &backends {
        let mut rows = writes(backend).await;
        rows.extend(reads(backend).await);
        rows.extend(listings(backend).await);
        rows.extend(parts(backend).await);
        let probed = backend.open().probe().await.expect("answers").conditional_create;
        let honoured = rows[0].1 && rows[1].1;
        // The probe may only be more careful than the truth.
        assert!(honoured || !probed, "{}: the probe takes it for better than it is", backend.name);
        rows.push(("found by the start-up probe: conditional creates", probed));
        columns.push(rows);
    }
    let names: Vec<_> = backends.iter().map(|b| b.name.as_str()).collect();
    println!("\n| semantics | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for row in 0..columns[0].len() {
        let answers: Vec<_> = columns.iter().map(|c| if c[row].1 { "yes" } else { "**no**" }).collect();
        println!("| {} | {} |", columns[0][row].0, answers.join(" | "));
    }
    for (backend, rows) in backends.iter().zip(&columns) {
        // What correctness rests on; the rest we do without.
        for needed in [
            "1,100 keys are listed once each",
            "every request sees what was done before",
            "parts: invisible until completed",
            "a read beside a write is never torn",
        ] {
            assert!(rows.contains(&(needed, true)), "{} lacks: {needed}", backend.name);
        }
    }
}
