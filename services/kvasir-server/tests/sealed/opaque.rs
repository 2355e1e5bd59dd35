//! Opaque objects of sealed tenants.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use kvasir_storage::{ByteRange, ObjectError, PutObject, PutPart, Storage, hot::RequestHint};
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory};
use uuid::Uuid;

use crate::{body, keys, name, raw, replica, replica_with};

/// An opaque object is sealed like a chunk: its key and its bytes are nowhere in plain, and one that does not open is in nobody's way.
#[tokio::test]
async fn opaque_objects_are_sealed_with_their_keys() {
    let truth = Arc::new(InMemory::new());
    let payload = |seed: u8| [&b"canary of the payload"[..], &vec![seed; 40_000]].concat();
    let put = async |storage: &Arc<Storage>, bytes: &[u8]| {
        let (tenant, namespace, key) =
            (name("default"), name("n"), "canary of the key".parse().expect("a key"));
        let (length, hint) = (bytes.len() as u64, RequestHint::default());
        let put = PutObject { tenant, namespace, key, bytes: length, hint, listed: true, reservation: None };
        storage.ingest().put_object(put, body(bytes)).await
    };
    let get = async |storage: &Arc<Storage>| {
        let key = "canary of the key".parse().expect("a key");
        let object = storage.reads().opaque(&name("default"), &name("n"), &key).await?;
        let read = storage.reads().read_opaque(&object, ByteRange::Whole, &RequestHint::default()).await?;
        let parts: Vec<Bytes> = read.bytes.try_collect().await?;
        Ok::<_, ObjectError>(parts.concat())
    };
    put(&replica(&truth), &payload(1)).await.expect("stores");
    assert_eq!(get(&replica(&truth)).await.expect("reads"), payload(1));
    let part = payload(1);
    let storage = replica(&truth);
    let (tenant, bytes) = (name("default"), part.len() as u64);
    let of_part = PutPart { tenant, upload_id: Uuid::nil(), number: 1, bytes, reservation: None };
    storage.ingest().put_part(of_part, body(&part)).await.expect("stores a part");
    let listed: Vec<_> = truth.list(None).try_collect().await.expect("lists");
    for meta in &listed {
        let bytes = raw(&truth, &meta.location).await;
        let is_plain = |text: &[u8]| text.windows(6).any(|window| window == b"canary");
        assert!(!is_plain(&bytes) && !is_plain(meta.location.as_ref().as_bytes()), "{}", meta.location);
        assert!(!meta.location.as_ref().contains("/o/"), "its key is written down: {}", meta.location);
    }
    assert!(listed.iter().any(|meta| meta.location.as_ref().contains("/u/")), "the part is among them");
    let lost = get(&replica_with(&truth, keys("two"))).await.expect_err("another key");
    assert_eq!(lost.code().as_str(), "key_lost", "{lost}");
    let object = listed.iter().find(|meta| meta.location.as_ref().ends_with(".kvs")).expect("one is sealed");
    let mut broken = raw(&truth, &object.location).await;
    broken[200] ^= 1;
    truth.put(&object.location, broken.into()).await.expect("puts");
    let gone = get(&replica(&truth)).await.expect_err("a miss");
    assert_eq!(gone.code().as_str(), "unknown_object", "{gone}");
    put(&replica(&truth), &payload(2)).await.expect("other bytes take its place");
    assert_eq!(get(&replica(&truth)).await.expect("reads"), payload(2));
}
