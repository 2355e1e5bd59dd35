//! Uploads in parts: their results when they are complete, and when they are not.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, TryStreamExt};
use kvasir_storage::{
    ByteRange, ObjectError, PartContent, PutError, PutObject, PutPart, Storage, StoredPart, gc::GcPolicy,
    hot::RequestHint,
};
use kvasir_store::{
    layout::{ChunkKey, Key},
    seal::FileKeys,
};
use kvasir_tests::hooked::{Hook, Hooked};
use kvasir_types::ObjectKey;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{
    Backend,
    replicas::collect,
    storage_core::{body, name, tenant},
};

fn key() -> ObjectKey {
    "of parts".parse().expect("a key")
}

fn put(upload_id: Uuid, number: u16, bytes: u64) -> PutPart {
    PutPart { tenant: tenant(), upload_id, number, bytes, reservation: None }
}

async fn part(storage: &Arc<Storage>, upload_id: Uuid, number: u16, bytes: &[u8]) -> StoredPart {
    let stored = storage.ingest().put_part(put(upload_id, number, bytes.len() as u64), body(bytes)).await;
    StoredPart { number, content: stored.expect("stores") }
}

async fn complete(
    storage: &Arc<Storage>,
    upload_id: Uuid,
    parts: &[StoredPart],
) -> Result<bool, ObjectError> {
    let put = PutObject {
        tenant: tenant(),
        namespace: name("n"),
        key: key(),
        bytes: parts.iter().map(|part| part.content.bytes()).sum(),
        hint: RequestHint::default(),
        listed: true,
        reservation: None,
    };
    Ok(storage.ingest().complete_parts(upload_id, put, parts.to_vec()).await?.created)
}

pub(crate) async fn parts_become_an_object(backend: &Backend) {
    let (one, other) = (backend.replica().await, backend.replica().await);
    let (upload_id, large) = (Uuid::now_v7(), vec![7; 6 << 20]);
    let first = part(&one, upload_id, 1, &large).await;
    let last = part(&other, upload_id, 9, b"the end").await;
    // Sent again with other bytes, and named no more.
    part(&one, upload_id, 9, b"not the end").await;
    let text = last.content.to_string();
    assert_eq!(text.parse::<PartContent>(), Ok(last.content), "as a client gives it back");
    let missing = StoredPart { number: 2, ..last };
    let refused = complete(&other, upload_id, &[first, missing, last]).await;
    assert!(matches!(refused, Err(ObjectError::Put(PutError::UnknownPart { number: 2 }))), "{refused:?}");
    assert!(complete(&other, upload_id, &[first, last]).await.expect("completes"));
    let reads = backend.replica().await;
    let object = reads.reads().opaque(&tenant(), &name("n"), &key()).await.expect("is there");
    let read = reads.reads().read_opaque(&object, ByteRange::Whole, &RequestHint::default()).await;
    let bytes: Vec<Bytes> = read.expect("opens").bytes.try_collect().await.expect("reads");
    assert!(bytes.concat() == [&large[..], b"the end"].concat());
    // The part that was not named waits for the collector.
    assert_eq!(backend.paths("/u/").await.len(), 1);
    let again = complete(&one, upload_id, &[first, last]).await;
    assert!(matches!(again, Err(ObjectError::Put(PutError::UnknownPart { number: 1 }))), "{again:?}");
    let aborted = Uuid::now_v7();
    part(&one, aborted, 1, b"x").await;
    one.ingest().abort_parts(&tenant(), aborted).await.expect("aborts");
    assert_eq!(backend.paths("/u/").await.len(), 1);
    collect(&one, &GcPolicy::default()).await;
    assert_eq!(backend.paths("/u/").await.len(), 1, "it is young");
    // Some stores' dates have whole seconds.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let late = backend.replica_with(|settings| settings.direct.upload_ttl = Duration::ZERO).await;
    collect(&late, &GcPolicy::default()).await;
    assert!(backend.paths("/u/").await.is_empty());
    let damaged = async {
        let upload_id = Uuid::now_v7();
        let sent = futures::stream::iter([Err::<Bytes, _>("the line broke")]);
        one.ingest().put_part(put(upload_id, 1, 3), sent).await
    };
    assert!(matches!(damaged.await, Err(PutError::Body { .. })));
    assert!(backend.paths("/u/").await.is_empty());
}

/// Sealing changes the lengths of parts: stores refuse short ones before the last.
pub(crate) async fn sealed_objects_go_in_parts(backend: &Backend) {
    let open = backend.open();
    open.probe().await.expect("the store answers");
    let keys = FileKeys::parse_list(&format!("default:one:{}", "01".repeat(32))).expect("keys");
    let sealed = open.sealed(Arc::new(keys));
    let chunk = ChunkKey {
        tenant: tenant(),
        model_id: [1; 32].into(),
        seq_hash: [2; 32].into(),
        object_digest: [3; 32].into(),
    };
    let path = sealed.layout().path(&Key::Chunk(chunk));
    let content: Vec<u8> = (0..(11_u32 << 20) + 77).map(|i| (i * 31 % 251) as u8).collect();
    let mut upload = sealed.objects().put_multipart(&path).await.expect("starts");
    for part in content.chunks(8 << 20) {
        upload.put_part(PutPayload::from(part.to_vec())).await.expect("sends");
    }
    upload.complete().await.expect("completes");
    let read = sealed.objects().get(&path).await.expect("is there").bytes().await.expect("reads");
    assert!(read == content);
}

/// A client hangs up while its part is written: the part is stored and counted all the same, and no request is cut off.
#[tokio::test]
async fn a_part_is_stored_without_its_client() {
    let backend = Backend::memory();
    let (begun, may_write) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, waits) = (Arc::clone(&begun), Arc::clone(&may_write));
    let hook: Hook = Arc::new(move |request, path| {
        let is_part = request == Hooked::Writing && path.as_ref().contains("/u/");
        let (told, waits) = (Arc::clone(&told), Arc::clone(&waits));
        async move {
            if is_part {
                told.notify_one();
                waits.notified().await;
            }
            Ok(())
        }
        .boxed()
    });
    let storage = backend.hooked_replica(hook).await;
    let sending = storage.ingest().put_part(put(Uuid::now_v7(), 1, 3), body(b"abc"));
    tokio::select! {
        stored = sending => panic!("it waits: {stored:?}"),
        () = begun.notified() => {}
    }
    may_write.notify_one();
    let written = async {
        while backend.paths("/u/").await.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), written).await.expect("the part is stored");
}

/// A hook that answers reads of parts with an error.
fn failing_parts(error: fn() -> object_store::Error) -> Hook {
    Arc::new(move |request, path| {
        let fails = request == Hooked::Reading && path.as_ref().contains("/u/");
        async move { if fails { Err(error()) } else { Ok(()) } }.boxed()
    })
}

/// A part that cannot be read is no fault of the client that names it: the error says so, and the same request succeeds later.
#[tokio::test]
async fn a_completion_says_why_a_part_cannot_be_read() {
    let backend = Backend::memory();
    let (replica, upload_id) = (backend.replica().await, Uuid::now_v7());
    let stored = part(&replica, upload_id, 1, b"abc").await;
    let away = failing_parts(|| object_store::Error::Generic { store: "test", source: "is away".into() });
    let failed = complete(&backend.hooked_replica(away).await, upload_id, &[stored]).await;
    assert!(matches!(failed, Err(ObjectError::Put(PutError::Store(_)))), "{failed:?}");
    // Another completion of the upload removed it since this one looked.
    let gone =
        failing_parts(|| object_store::Error::NotFound { path: "u".to_owned(), source: "is gone".into() });
    let failed = complete(&backend.hooked_replica(gone).await, upload_id, &[stored]).await;
    assert!(matches!(failed, Err(ObjectError::Put(PutError::UnknownPart { number: 1 }))), "{failed:?}");
    assert!(complete(&replica, upload_id, &[stored]).await.expect("completes"));
}
