//! Tenants that were stored in the clear and get their first key.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kvasir_storage::{AnnouncedBody, PutChunk, PutObject, PutPart, SealReport, hot::RequestHint};
use kvasir_store::seal::{KeyBytes, KeyService, KeyServiceError};
use kvasir_tests::chunks;
use kvasir_types::{Name, RootHash};
use object_store::memory::InMemory;
use uuid::Uuid;

use crate::{body, found, keyless, keys, lookup, name, named, prepare, put, replica, seen, storage};

/// A bucket of a tenant without a key: chunks, contexts, rotated salts, a journal batch.
async fn plain_bucket() -> Arc<InMemory> {
    let truth = Arc::new(InMemory::new());
    let (storage, tenant) = (keyless(&truth), name("default"));
    let root = prepare(&storage).await;
    let chunks = chunks::context(root, &chunks::tokens(1, 512), 256, 500);
    for chunk in &chunks {
        put(&storage, chunk).await;
    }
    for _ in 0..2 {
        storage.contexts().create(&tenant, named(&chunks[0])).await.expect("creates");
    }
    let object = PutObject {
        tenant: tenant.clone(),
        namespace: name("n"),
        key: "a key in the clear".parse().expect("a key"),
        bytes: 5,
        hint: RequestHint::default(),
        listed: true,
        reservation: None,
    };
    storage.ingest().put_object(object, body(b"bytes")).await.expect("stores");
    let (tenant_of_part, upload_id) = (tenant.clone(), Uuid::nil());
    let part = PutPart { tenant: tenant_of_part, upload_id, number: 1, bytes: 5, reservation: None };
    storage.ingest().put_part(part, body(b"bytes")).await.expect("stores");
    let (namespace, model_id) = (name("n"), chunks::spec().model_id());
    storage
        .catalog()
        .rotate_namespace(&tenant, &namespace, &model_id, Duration::from_secs(60))
        .await
        .expect("rotates");
    storage.changes().journal_append().await.expect("appends");
    truth
}

#[tokio::test]
async fn a_tenant_is_moved_over_and_a_kill_at_any_step_costs_another_run() {
    let (tenant, model_id) = (name("default"), chunks::spec().model_id());
    let mut killed_at = 0;
    loop {
        let truth = plain_bucket().await;
        let before = seen(&truth).await;
        let opened = replica(&truth).catalog().root(&tenant, &name("n"), &model_id).await;
        assert!(opened.expect_err("its salt is plain").to_string().contains("kvasir admin seal"));
        let cut = replica(&truth);
        let mut steps = 0;
        let killed = tokio::spawn(async move {
            let progress = |_| {
                assert!(steps < killed_at, "killed");
                steps += 1;
            };
            cut.lifecycle().seal_tenant(&name("default"), progress).await
        });
        let whole = killed.await.is_ok();
        // What was done stays done: the root that a replica saw is that of everybody.
        let early = replica(&truth).catalog().root(&tenant, &name("z"), &model_id).await.ok();
        let again = replica(&truth).lifecycle().seal_tenant(&tenant, |_| {}).await.expect("seals");
        assert!(!whole || again == SealReport::default(), "nothing is left to do: {again:?}");
        let sealed = replica(&truth);
        let root = sealed.catalog().root(&tenant, &name("n"), &model_id).await.expect("opens");
        let other = sealed.catalog().root(&tenant, &name("z"), &model_id).await.expect("opens");
        assert!(early.is_none_or(|early| early == other), "step {killed_at}");
        assert_eq!(found(&truth, ".kvc").await, []);
        assert_eq!(found(&truth, "/x/").await, []);
        assert_eq!(found(&truth, "/o/").await, [], "keys of listed objects");
        let salts: HashSet<&[u8]> = before.windows(32).collect();
        assert!(seen(&truth).await.windows(20).all(|window| window != b"a-label-in-the-clear"));
        let derived = |salt: &[u8]| RootHash::derive("default", "n", salt, &model_id);
        assert!(salts.iter().all(|salt| derived(salt) != root), "a salt that was in the clear");
        let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 500);
        put(&sealed, &chunk).await;
        assert_eq!(lookup(&replica(&truth), 1, 256).await.expect("finds"), 256);
        if whole {
            break;
        }
        killed_at += 1;
    }
    assert!(killed_at >= 6, "{killed_at} steps");
}

#[tokio::test]
async fn a_replica_that_gets_the_key_while_it_runs_leaves_the_plain_salt() {
    let truth = plain_bucket().await;
    let (tenant, model_id) = (name("default"), chunks::spec().model_id());
    let late = Arc::new(LateKeys::default());
    let running = storage(&truth, |store| store.sealed(Arc::clone(&late) as Arc<dyn KeyService>));
    let plain = running.catalog().root(&tenant, &name("z"), &model_id).await.expect("in the clear");
    late.0.store(true, Ordering::Relaxed);
    running.catalog().root(&tenant, &name("z"), &model_id).await.expect_err("its salt is plain");
    replica(&truth).lifecycle().seal_tenant(&tenant, |_| {}).await.expect("seals");
    let root = running.catalog().root(&tenant, &name("z"), &model_id).await.expect("opens");
    assert_ne!(root, plain);
    assert_eq!(root, replica(&truth).catalog().root(&tenant, &name("z"), &model_id).await.expect("opens"));
    let unsealed = keyless(&truth).lifecycle().seal_tenant(&tenant, |_| {}).await.expect_err("has no key");
    assert!(unsealed.to_string().contains("encryption.keys_file"), "{unsealed}");
}

/// The first key comes while a body arrives that was announced with its digest.
#[tokio::test]
async fn a_body_that_began_in_the_clear_does_not_end_there() {
    let (truth, late) = (Arc::new(InMemory::new()), Arc::new(LateKeys::default()));
    let running = storage(&truth, |store| store.sealed(Arc::clone(&late) as Arc<dyn KeyService>));
    let root = prepare(&running).await;
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 500);
    let bytes = bytes::Bytes::copy_from_slice(&chunk.bytes);
    let arriving = futures::stream::once(async move {
        late.0.store(true, Ordering::Relaxed);
        Ok::<_, std::io::Error>(bytes)
    });
    let announced =
        Some(AnnouncedBody { object_digest: chunk.object_digest, bytes: chunk.bytes.len() as u64 });
    let put = PutChunk {
        announced,
        ..PutChunk::new(&name("default"), &chunks::spec().model_id(), &chunk.seq_hash)
    };
    running.ingest().put_chunk(put, arriving).await.expect_err("it began in the clear");
    assert_eq!(found(&truth, ".kvc").await, []);
}

/// Keys that come into force while a replica runs.
#[derive(Debug, Default)]
struct LateKeys(AtomicBool);

#[async_trait::async_trait]
impl KeyService for LateKeys {
    fn current(&self, tenant: &Name) -> Option<Name> {
        self.0.load(Ordering::Relaxed).then(|| keys("one").current(tenant))?
    }

    async fn wrap(
        &self,
        tenant: &Name,
        id: &Name,
        key: &[u8; 32],
        context: &[u8],
    ) -> Result<Vec<u8>, KeyServiceError> {
        keys("one").wrap(tenant, id, key, context).await
    }

    async fn unwrap(
        &self,
        tenant: &Name,
        id: &Name,
        wrapped: &[u8],
        context: &[u8],
    ) -> Result<KeyBytes, KeyServiceError> {
        keys("one").unwrap(tenant, id, wrapped, context).await
    }
}
