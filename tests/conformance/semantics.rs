//! The properties of a store on which the service depends, as `object_store` exposes them.

use futures::{TryStreamExt, future::join_all};
use object_store::{ObjectStoreExt, PutMode, PutPayload, path::Path};

use crate::Backend;

fn path(backend: &Backend, name: &str) -> Path {
    backend.open().layout().base().clone().join("conformance").join(name)
}

pub(crate) async fn creates_are_exclusive_or_the_probe_says_so(backend: &Backend) {
    let store = backend.open();
    let honoured = store.probe().await.expect("answers").conditional_create;
    for round in 0..10 {
        let path = path(backend, &format!("create-{round}"));
        let writers = (0..8).map(|i| {
            let payload = PutPayload::from(format!("writer {i}").into_bytes());
            let (store, path) = (store.objects().clone(), path.clone());
            async move { store.put_opts(&path, payload, PutMode::Create.into()).await }
        });
        let won = join_all(writers).await.iter().filter(|r| r.is_ok()).count();
        assert!(won == 1 || !honoured, "{won} of 8 creates won, and the probe did not notice");
        store.objects().delete(&path).await.expect("deletes");
    }
    if !honoured {
        println!("{} lacks: conditional creates", backend.name);
    }
}

pub(crate) async fn ranges_are_exact(backend: &Backend) {
    let store = backend.open().objects().clone();
    let path = path(backend, "ranges");
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
    store.put(&path, bytes.clone().into()).await.expect("writes");
    for range in [0..1, 0..100_000, 99_999..100_000, 4_095..65_537] {
        let read = store.get_range(&path, range.clone()).await.expect("reads");
        assert_eq!(read.as_ref(), &bytes[range.start as usize..range.end as usize]);
    }
    let cut = store.get_range(&path, 99_990..200_000).await.expect("an end past the object's is cut");
    assert_eq!(cut.as_ref(), &bytes[99_990..]);
    assert!(store.get_range(&path, 100_000..100_001).await.is_err(), "a start past the end is refused");
    assert_eq!(store.head(&path).await.expect("is there").size, 100_000);
    let missing = store.get(&self::path(backend, "missing")).await;
    assert!(matches!(missing, Err(object_store::Error::NotFound { .. })), "{missing:?}");
}

pub(crate) async fn listings_are_complete_and_by_segment(backend: &Backend) {
    let store = backend.open().objects().clone();
    let folder = path(backend, "list");
    // More than a page of the in-process server.
    let names: Vec<String> = (0..120).map(|i| format!("{i:03}")).collect();
    join_all(names.iter().map(|n| {
        let (store, path) = (store.clone(), folder.clone().join(n.as_str()));
        async move { store.put(&path, PutPayload::from_static(b"x")).await.expect("writes") }
    }))
    .await;
    let neighbour = path(backend, "list-neighbour");
    store.put(&neighbour, PutPayload::from_static(b"x")).await.expect("writes");
    let listed: Vec<_> = store.list(Some(&folder)).try_collect().await.expect("lists");
    let listed: Vec<String> =
        listed.iter().map(|m| m.location.filename().expect("a name").to_owned()).collect();
    if !listed.is_sorted() {
        println!("{} lacks: sorted listings", backend.name);
    }
    let mut sorted = listed;
    sorted.sort();
    assert_eq!(sorted, names);
    let none: Vec<_> = store.list(Some(&path(backend, "nothing"))).try_collect().await.expect("lists");
    assert_eq!(none, vec![]);
}

pub(crate) async fn parts_are_invisible_until_completed(backend: &Backend) {
    let store = backend.open().objects().clone();
    let part = || PutPayload::from(vec![7u8; 5 << 20]);
    for (name, completes) in [("completed", true), ("aborted", false)] {
        let path = path(backend, name);
        let mut upload = store.put_multipart(&path).await.expect("starts");
        upload.put_part(part()).await.expect("sends");
        upload.put_part(PutPayload::from_static(b"end")).await.expect("sends");
        let before = store.head(&path).await;
        assert!(matches!(before, Err(object_store::Error::NotFound { .. })), "{before:?}");
        if completes {
            upload.complete().await.expect("completes");
            let whole = store.get(&path).await.expect("is there").bytes().await.expect("reads");
            assert_eq!((whole.len(), &whole[5 << 20..]), ((5 << 20) + 3, &b"end"[..]));
        } else {
            upload.abort().await.expect("aborts");
            assert!(store.head(&path).await.is_err());
        }
    }
    if let Some(server) = &backend.server {
        assert_eq!(server.open_uploads(), 0);
    }
}

pub(crate) async fn overwriting_and_deleting(backend: &Backend) {
    let store = backend.open().objects().clone();
    let path = path(backend, "overwrite");
    for text in ["one", "two two"] {
        store.put(&path, text.into()).await.expect("writes");
        assert_eq!(store.get(&path).await.expect("is there").bytes().await.expect("reads"), text);
    }
    store.delete(&path).await.expect("deletes");
    assert!(store.head(&path).await.is_err());
    match store.delete(&path).await {
        Ok(()) => {}
        Err(object_store::Error::NotFound { .. }) => {
            println!("{} lacks: deleting what is not there as a success", backend.name);
        }
        Err(other) => panic!("{other}"),
    }
}
