//! Tails that a longer chunk contains: which go, when they are marked, and what keeps them.

use std::sync::OnceLock;

use super::*;

#[tokio::test]
async fn tails_inside_longer_chunks_go_and_others_stay() {
    let storage = storage_over(InMemory::new(), |_| {});
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(3, 1536);
    let mut other = tokens.clone();
    other[299] ^= 1;
    // Ends within a block; ends at a block; differs in its last token; is followed by another chunk.
    let (part, even) = (chunks::chunk(root, &tokens, 0, 300, 60), chunks::chunk(root, &tokens, 0, 512, 60));
    let differs = chunks::chunk(root, &other, 0, 300, 60);
    let followed = chunks::chunk(root, &tokens, 0, 768, 60);
    let behind = chunks::chunk(root, &[&tokens[..768], &[7; 256]].concat(), 768, 1024, 60);
    let long = chunks::chunk(root, &tokens, 0, 1536, 60);
    for chunk in [&part, &even, &differs, &followed, &behind, &long] {
        put(&storage, chunk).await;
    }
    let dry = GcPolicy { dry_run: true, ..at_once() };
    assert_eq!(collect(&storage, &dry).await.contained, 2);
    let young = GcPolicy { grace: Duration::from_secs(3600), ..at_once() };
    assert_eq!(collect(&storage, &young).await.contained, 0, "not before the grace");
    // In a large cluster a replica collects the tails that it knows, in whichever unit they are.
    let members: Vec<_> = (0..3).map(|n| (format!("http://r{n}:7480"), 1.0)).collect();
    let mut divided = 0;
    for this in 0..3 {
        let contained = async |policy: &GcPolicy, known_tails| {
            let share = WorkShare::of(members.clone(), this, known_tails);
            let report = storage.lifecycle().collect_garbage(policy, &share, |_| {}).await.expect("collects");
            report.contained
        };
        assert_eq!((contained(&dry, true).await, contained(&young, true).await), (2, 0));
        divided += contained(&dry, false).await;
    }
    assert_eq!(divided, 2);
    assert_eq!(collect(&storage, &at_once()).await.contained, 2);
    assert_eq!(collect(&storage, &at_once()).await.deleted, 2);
    assert_eq!(matched(&storage, &tokens).await, 1536);
    assert_eq!(matched(&storage, &tokens[..300]).await, 288, "the longer chunk serves it, to the block");
    assert_eq!(matched(&storage, &other[..300]).await, 300);
    assert_eq!(matched(&storage, &[&tokens[..768], &[7; 256]].concat()).await, 1024);
}

/// All that is marked between two turns of the journal is announced in one batch, and to verify a tail takes a second.
#[tokio::test]
async fn tails_in_the_units_of_others_are_marked_once_all_were_verified() {
    const TAILS: u64 = 130;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let hook: Hook = Arc::new(move |request: Hooked, path: Path| {
        if matches!(request, Hooked::Written | Hooked::Reading) {
            told.lock().push(path);
        }
        futures::future::ready(Ok(())).boxed()
    });
    let storage = storage_over(HookedStore::new(Arc::new(InMemory::new()), hook), |_| {});
    let root = prepare(&storage).await;
    let mut tails = Vec::new();
    for seed in 0..TAILS {
        let tokens = chunks::tokens(seed, 64);
        let [tail, longer] = [48, 64].map(|end| chunks::chunk(root, &tokens, 0, end, 50));
        tails.push(storage.store().layout().path(&Key::Chunk(put(&storage, &tail).await)));
        put(&storage, &longer).await;
    }
    seen.lock().clear();
    let members = (0..16).map(|n| (format!("http://r{n}:7480"), 1.0)).collect();
    let share = WorkShare::of(members, 0, true);
    let report = storage.lifecycle().collect_garbage(&at_once(), &share, |_| {}).await.expect("collects");
    assert_eq!(report.contained, TAILS);
    let seen = seen.lock();
    let is_intent = |path: &Path| path.as_ref().contains("/gc/intent/");
    assert_eq!(seen.iter().filter(|path| is_intent(path)).count(), 2);
    let marking = seen.iter().skip_while(|path| !is_intent(path));
    assert_eq!(marking.filter(|path| tails.contains(path)).count(), 0, "the bytes of a tail are read before");
}

/// Each was verified for a second.
#[tokio::test]
async fn tails_that_were_verified_before_an_error_are_marked() {
    let refused = Arc::new(Mutex::new(None));
    let refusing = Arc::clone(&refused);
    let hook: Hook = Arc::new(move |request: Hooked, path: Path| {
        let is_refused = request == Hooked::Reading && *refusing.lock() == Some(path.clone());
        let source = "not this one".into();
        let error = object_store::Error::PermissionDenied { path: path.to_string(), source };
        futures::future::ready(if is_refused { Err(error) } else { Ok(()) }).boxed()
    });
    let storage = storage_over(HookedStore::new(Arc::new(InMemory::new()), hook), |_| {});
    let root = prepare(&storage).await;
    let mut tails = Vec::new();
    for seed in 0..3 {
        let tokens = chunks::tokens(seed, 64);
        let [tail, longer] = [48, 64].map(|end| chunks::chunk(root, &tokens, 0, end, 50));
        tails.push(put(&storage, &tail).await);
        put(&storage, &longer).await;
    }
    tails.sort_by_key(|key| key.seq_hash);
    let path = |key: Key| storage.store().layout().path(&key);
    *refused.lock() = Some(path(Key::Chunk(tails[2].clone())));
    // So many that hardly any unit is its own.
    let members = (0..1_000).map(|n| (format!("http://r{n}:7480"), 1.0)).collect();
    let share = WorkShare::of(members, 0, true);
    let passed = storage.lifecycle().collect_garbage(&at_once(), &share, |_| {}).await;
    assert!(passed.is_err(), "{passed:?}");
    for (tail, is_marked) in tails.iter().zip([true, true, false]) {
        let tombstone = storage.store().objects().head(&path(Key::Tombstone(tail.clone()))).await;
        assert_eq!(tombstone.is_ok(), is_marked, "{tombstone:?}");
    }
}

/// Between its verification and its tombstone may be an hour.
#[tokio::test]
async fn a_tail_stays_if_a_chunk_is_stored_behind_it() {
    let late: Arc<OnceLock<(Arc<Storage>, Chunk)>> = Arc::default();
    let stored = Arc::clone(&late);
    let hook: Hook = Arc::new(move |request: Hooked, path: Path| {
        let is_intent = request == Hooked::Written && path.as_ref().contains("/gc/intent/");
        let late = Arc::clone(&stored);
        async move {
            if let Some((storage, chunk)) = late.get().filter(|_| is_intent) {
                put(storage, chunk).await;
            }
            Ok(())
        }
        .boxed()
    });
    let storage = storage_over(HookedStore::new(Arc::new(InMemory::new()), hook), |_| {});
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(1, 64);
    for end in [48, 64] {
        put(&storage, &chunks::chunk(root, &tokens, 0, end, 50)).await;
    }
    let longer = [&tokens[..48], &[7; 16]].concat();
    let behind = chunks::chunk(root, &longer, 48, 64, 50);
    assert!(late.set((Arc::clone(&storage), behind)).is_ok());
    let report = collect(&storage, &at_once()).await;
    assert_eq!((report.contained, report.spared), (1, 1), "{report:?}");
    assert_eq!(matched(&storage, &longer).await, 64);
}
