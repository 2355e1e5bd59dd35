//! Eviction to the capacity: what goes, who decides on it, and who does it.

use kvasir_api::ContextRequest;
use kvasir_eviction::PolicyKind;
use kvasir_storage::{ObjectError, PutObject, salt_record};
use kvasir_store::layout::Layout;
use kvasir_types::ObjectKey;

use super::*;

/// Evicts the least recently used objects beyond so many bytes.
fn full(bytes: u64) -> GcPolicy {
    GcPolicy { capacity_bytes: Some(bytes), eviction: PolicyKind::Lru, ..at_once() }
}

fn replica(truth: &Arc<InMemory>) -> Arc<Storage> {
    storage_over(Arc::clone(truth), |settings| settings.track_uses = true)
}

/// Stores a context of one chunk for each seed, with the oldest first. Returns their tokens, and the bytes of one chunk.
async fn store_one_by_one(
    storage: &Arc<Storage>,
    root: RootHash,
    seeds: std::ops::Range<u64>,
) -> (Vec<Vec<u32>>, u64) {
    let contexts: Vec<_> = seeds.map(|seed| chunks::tokens(seed, 256)).collect();
    let mut bytes = 0;
    for tokens in &contexts {
        let chunk = chunks::chunk(root, tokens, 0, 256, 2_000);
        bytes = chunk.bytes.len() as u64;
        put(storage, &chunk).await;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    (contexts, bytes)
}

/// The indices of the contexts of which something is found.
async fn found(storage: &Arc<Storage>, contexts: &[Vec<u32>]) -> Vec<usize> {
    let mut found = Vec::new();
    for (i, tokens) in contexts.iter().enumerate() {
        if matched(storage, tokens).await > 0 {
            found.push(i);
        }
    }
    found
}

#[tokio::test]
async fn the_capacity_holds_and_what_is_used_stays() {
    let storage = replica(&Arc::new(InMemory::new()));
    let root = prepare(&storage).await;
    let (contexts, bytes) = store_one_by_one(&storage, root, 10..20).await;
    assert_eq!(matched(&storage, &contexts[0]).await, 256);
    let full = full(4 * bytes);
    let dry = collect(&storage, &GcPolicy { dry_run: true, ..full.clone() }).await;
    assert_eq!((dry.evicted, dry.evicted_bytes), (6, 6 * bytes));
    assert_eq!(collect(&storage, &full).await.evicted, 6);
    assert_eq!(found(&storage, &contexts).await, [0, 7, 8, 9], "the one that was used, and the youngest");
    let again = collect(&storage, &full).await;
    assert_eq!((again.evicted, again.deleted), (0, 6), "what is on its way out does not count");
}

/// In a cluster each replica serves other prompts, and one chooses what is evicted.
#[tokio::test]
async fn what_another_replica_serves_stays() {
    let truth = Arc::new(InMemory::new());
    let (evicting, serving) = (replica(&truth), replica(&truth));
    let root = prepare(&evicting).await;
    let (contexts, bytes) = store_one_by_one(&evicting, root, 30..34).await;
    assert_eq!(matched(&serving, &contexts[0]).await, 256);
    assert_eq!(collect(&serving, &full(4 * bytes)).await.evicted, 0);
    assert_eq!(collect(&evicting, &full(bytes)).await.evicted, 3);
    assert_eq!(found(&evicting, &contexts).await, [0], "the oldest, and the one that was used");
}

/// Stores a chunk for each seed in a tenant's name; gives the bytes of one.
async fn furnish(storage: &Arc<Storage>, tenant: &Name, seeds: std::ops::Range<u64>) -> u64 {
    let (model_id, hash) = (chunks::spec().model_id(), ProfileHash::of(chunks::PROFILE));
    storage.ingest().register_model(tenant, chunks::spec(), None).await.expect("registers");
    storage
        .ingest()
        .put_profile(tenant, &model_id, &hash, None, body(chunks::PROFILE))
        .await
        .expect("stores");
    let root =
        storage.catalog().root(tenant, &"n".parse().expect("a name"), &model_id).await.expect("a root");
    let mut bytes = 0;
    for seed in seeds {
        let chunk = chunks::chunk(root, &chunks::tokens(seed, 256), 0, 256, 2_000);
        bytes = chunk.bytes.len() as u64;
        storage
            .ingest()
            .put_chunk(PutChunk::new(tenant, &model_id, &chunk.seq_hash), body(&chunk.bytes))
            .await
            .expect("stores");
    }
    bytes
}

#[tokio::test]
async fn a_full_store_takes_from_the_tenant_that_holds_most() {
    let storage = replica(&Arc::new(InMemory::new()));
    let (small, large): (Name, Name) = ("small".parse().expect("a name"), "large".parse().expect("a name"));
    // The small tenant's chunks are the oldest of all, and nobody reads them: any policy would name them first.
    let bytes = furnish(&storage, &small, 0..3).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    furnish(&storage, &large, 10..20).await;
    let objects = async |tenant: &Name| storage.changes().usage(tenant).await.expect("lists").objects;
    assert_eq!(collect(&storage, &full(8 * bytes)).await.evicted, 5);
    assert_eq!((objects(&small).await, objects(&large).await), (3, 5), "3 of 8 are less than half");
    // Below an equal share for both, both give, and neither more than the other keeps.
    collect(&storage, &full(4 * bytes)).await;
    assert_eq!((objects(&small).await, objects(&large).await), (2, 2));
}

/// A store in which hashes are the same in each run.
async fn salted() -> Arc<InMemory> {
    let truth = Arc::new(InMemory::new());
    let salt = Layout::new(&Path::default()).path(&Key::Salt { tenant: tenant() });
    truth.put(&salt, salt_record(&tenant(), &[7; limits::SALT_BYTES]).into()).await.expect("writes");
    truth
}

fn victims() -> Path {
    Layout::new(&Path::default()).path(&Key::GcVictims)
}

/// The shares of a cluster of two: first of the member that lists the whole store.
fn shares() -> [WorkShare; 2] {
    let members: Vec<_> = (0..2).map(|n| (format!("http://r{n}:7480"), 1.0)).collect();
    let mut shares = [0, 1].map(|this| WorkShare::of(members.clone(), this, false));
    shares.sort_by_key(|share| !share.keeps_accounts());
    shares
}

async fn pass(storage: &Storage, policy: &GcPolicy, share: &WorkShare) -> GcReport {
    storage.lifecycle().collect_garbage(policy, share, |_| {}).await.expect("collects")
}

/// Four times what the store may hold, after a pass of the member of a cluster that lists it.
struct Overfull {
    truth: Arc<InMemory>,
    keeper: Arc<Storage>,
    root: RootHash,
    contexts: Vec<Vec<u32>>,
    /// Room for ten of them: their sizes differ by single bytes.
    capacity: u64,
    /// The victims in the other member's units.
    left: Vec<usize>,
}

impl Overfull {
    /// The contexts of which everything has to go.
    const GOING: usize = 30;

    async fn new() -> Self {
        let truth = salted().await;
        let keeper = replica(&truth);
        let root = prepare(&keeper).await;
        let (contexts, bytes) = store_one_by_one(&keeper, root, 100..140).await;
        let [share, _] = shares();
        let capacity = 10 * bytes + bytes / 2;
        let report = pass(&keeper, &full(capacity), &share).await;
        let left = found(&keeper, &contexts).await.into_iter().filter(|i| *i < Self::GOING).collect();
        let this = Self { truth, keeper, root, contexts, capacity, left };
        assert!(report.listed_all && report.evicted > 0 && this.left.len() > 2, "{report:?} {:?}", this.left);
        assert_eq!(report.evicted as usize + this.left.len(), Self::GOING, "each evicts its own");
        this
    }

    /// A pass of the other member.
    async fn evicted_by_the_owner(&self, owner: &Storage, capacity: u64) -> GcReport {
        let [_, share] = shares();
        let report = pass(owner, &full(capacity), &share).await;
        assert!(!report.listed_all, "{report:?}");
        report
    }
}

#[tokio::test]
async fn the_owner_of_a_victim_evicts_it_once() {
    let overfull = Overfull::new().await;
    let Overfull { truth, keeper, contexts, capacity, left, .. } = &overfull;
    let report = overfull.evicted_by_the_owner(&replica(truth), *capacity).await;
    assert_eq!(report.evicted as usize, left.len());
    let rest: Vec<usize> = (Overfull::GOING..contexts.len()).collect();
    assert_eq!(found(keeper, contexts).await, rest);
    // Not by the record that says so, and not by one that no longer does.
    assert_eq!(overfull.evicted_by_the_owner(&replica(truth), *capacity).await.evicted, 0);
    let [share, _] = shares();
    assert_eq!(pass(keeper, &full(*capacity), &share).await.evicted, 0);
    assert_eq!(overfull.evicted_by_the_owner(&replica(truth), *capacity).await.evicted, 0);
    assert_eq!(found(keeper, contexts).await, rest);
}

#[tokio::test]
async fn a_victim_that_was_pinned_or_served_since_stays() {
    let overfull = Overfull::new().await;
    let Overfull { truth, keeper, root, contexts, capacity, left } = &overfull;
    let (owner, [pinned, served]) = (replica(truth), [left[0], left[1]]);
    let request = ContextRequest {
        model_id: chunks::spec().model_id(),
        namespace: "n".parse().expect("a name"),
        chunks: vec![chunks::chunk(*root, &contexts[pinned], 0, 256, 2_000).seq_hash],
        labels: Default::default(),
        ttl_s: None,
        pinned: true,
    };
    keeper.contexts().create(&tenant(), request).await.expect("pins");
    assert_eq!(matched(&owner, &contexts[served]).await, 256);
    let report = overfull.evicted_by_the_owner(&owner, *capacity).await;
    assert_eq!((report.evicted as usize, report.pinned), (left.len() - 2, 1));
    let rest = [pinned, served].into_iter().chain(Overfull::GOING..contexts.len());
    assert_eq!(found(keeper, contexts).await, rest.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_record_that_is_damaged_or_for_another_capacity_evicts_nothing() {
    let overfull = Overfull::new().await;
    let Overfull { truth, capacity, left, .. } = &overfull;
    let record = truth.get(&victims()).await.expect("was written").bytes().await.expect("memory");
    for damaged in [Bytes::new(), record.slice(1..), record.slice(..record.len() - 1)] {
        truth.put(&victims(), damaged.into()).await.expect("writes");
        assert_eq!(overfull.evicted_by_the_owner(&replica(truth), *capacity).await.evicted, 0);
    }
    truth.delete(&victims()).await.expect("deletes");
    assert_eq!(overfull.evicted_by_the_owner(&replica(truth), *capacity).await.evicted, 0);
    truth.put(&victims(), record.into()).await.expect("writes");
    assert_eq!(overfull.evicted_by_the_owner(&replica(truth), *capacity + 1).await.evicted, 0);
    let report = overfull.evicted_by_the_owner(&replica(truth), *capacity).await;
    assert_eq!(report.evicted as usize, left.len(), "it was for this one");
}

/// Who has nobody to write for evicts, or counts, everything itself.
#[tokio::test]
async fn one_replica_alone_and_a_dry_run_write_no_record() {
    let truth = salted().await;
    let storage = replica(&truth);
    let root = prepare(&storage).await;
    let (_, bytes) = store_one_by_one(&storage, root, 200..220).await;
    let [keeper, _] = shares();
    for (share, dry_run) in [(keeper, true), (WorkShare::WHOLE, false)] {
        let policy = GcPolicy { dry_run, ..full(5 * bytes / 2) };
        assert_eq!(pass(&storage, &policy, &share).await.evicted, 18);
        assert!(truth.head(&victims()).await.is_err());
    }
}

/// The writer of one of them may have ended before it gave way. Nobody was told that it was stored, and it must not be served
/// when the other one is gone.
#[tokio::test]
async fn an_object_whose_key_has_other_bytes_is_not_evicted_alone() {
    let (namespace, key): (Name, ObjectKey) = ("n".parse().expect("a name"), "k".parse().expect("a key"));
    let [truth, elsewhere] = [salted().await, salted().await];
    for (store, payload) in [(&truth, [1_u8; 1_000]), (&elsewhere, [2_u8; 1_000])] {
        let put = PutObject {
            tenant: tenant(),
            namespace: namespace.clone(),
            key: key.clone(),
            bytes: payload.len() as u64,
            hint: RequestHint::default(),
            listed: false,
            reservation: None,
        };
        replica(store).ingest().put_object(put, body(&payload)).await.expect("stores");
    }
    let mut bytes = 0;
    for meta in elsewhere.list(None).try_collect::<Vec<_>>().await.expect("lists") {
        if meta.location.as_ref().ends_with(".kvc") {
            let object = elsewhere.get(&meta.location).await.expect("is there");
            let object = object.bytes().await.expect("memory");
            bytes = meta.size;
            truth.put(&meta.location, object.into()).await.expect("writes");
        }
    }
    let storage = replica(&truth);
    let policy = GcPolicy { grace: Duration::from_secs(3_600), ..full(bytes) };
    let report = collect(&storage, &policy).await;
    assert_eq!((report.objects, report.bytes, report.evicted), (2, 2 * bytes, 0));
    let read = storage.reads().opaque(&tenant(), &namespace, &key).await;
    assert!(matches!(read, Err(ObjectError::Unknown { .. })), "{read:?}");
}
