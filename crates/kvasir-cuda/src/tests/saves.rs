//! A client's saves out of pages on the device: what they store is what a save from the host's memory would, or nothing.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use kvasir_client::{
    Error, Kvasir,
    pages::{BlockTable, HostPages, Shard},
    report::SaveOutcome,
    testing::Server,
};
use kvasir_codec::KvBuffer;
use kvasir_kernels::Dtype;

use super::{
    common::{Setup, setups},
    engine_cache::Layout,
    loads::{LOADED, Pages, connect, load, stored},
};

/// What a namespace brings into host memory, at the finest level.
async fn brought(kvasir: &Kvasir, setup: &Setup, text: &[u32]) -> (u64, KvBuffer) {
    let host = HostPages::new(&setup.spec, 16, text.len()).expect("fits");
    let finest = setup.profile.level_count() as u8 - 1;
    let loaded = load(kvasir, text, vec![host.table()], finest).await;
    (loaded.loaded_tokens(), KvBuffer::from_source(&setup.spec, text.len(), &*host))
}

async fn save_pages(kvasir: &Kvasir, text: &[u32], tables: Vec<BlockTable>) -> SaveOutcome {
    let session = kvasir.session(text).without_lookup().await;
    session.save_pages(tables, text.len()).expect("they hold everything").outcome().await
}

/// Loaded into the pages of ranks and saved out of them again: as from one source with the same rows.
async fn round_trip(
    setup: &Setup,
    server: &Server,
    first: &Kvasir,
    text: &[u32],
    ranks: &[Pages],
    name: &str,
) {
    let tables = || -> Vec<BlockTable> { ranks.iter().map(Pages::table).collect() };
    let _ = load(first, text, tables(), 1).await;
    let host = HostPages::new(&setup.spec, 16, text.len()).expect("fits");
    let _ = load(first, text, vec![host.table()], 1).await;
    let of_pages = connect(server, setup, &format!("{name}-pages")).await;
    let outcome = save_pages(&of_pages, text, tables()).await;
    assert!(
        matches!(&outcome, SaveOutcome::Saved(report) if report.chunks.len() == 3),
        "{name}: {outcome:?}"
    );
    let of_host = connect(server, setup, &format!("{name}-host")).await;
    let session = of_host.session(text).without_lookup().await;
    session.save_now(&*host, text.len(), |_| ()).await.expect("saves");
    let (ours, theirs) = (brought(&of_pages, setup, text).await, brought(&of_host, setup, text).await);
    assert_eq!((ours.0, theirs.0), (LOADED as u64, LOADED as u64), "{name}");
    assert!(ours.1.as_slice() == theirs.1.as_slice(), "{name}: other rows");
}

#[tokio::test]
async fn every_layout_and_every_rank_is_saved_as_the_host_is() {
    let setup = &setups()[0];
    let (server, kvasir, text) = stored(setup).await;
    for (name, layout, block_tokens) in [
        ("flash", Layout::Flash, 32),
        ("hnd", Layout::Hnd, 64),
        ("joined", Layout::Joined, 32),
        ("packed", Layout::Packed, 32),
        ("contiguous", Layout::Contiguous, 32),
    ] {
        let whole = Pages::new(&setup.spec, (layout, block_tokens, Dtype::Bf16), Shard::ALL, None);
        round_trip(setup, &server, &kvasir, &text, &[whole], name).await;
    }
    let all = Shard::ALL.heads;
    let ranks = [
        (0..1, 0..1, Some(0)),
        (0..1, 1..2, Some(1)),
        (1..4, all, None),
        (4..5, 0..2, Some(0)),
        (4..5, 2..3, Some(1)),
    ];
    let ranks = ranks.map(|(layers, heads, half)| {
        Pages::new(&setup.spec, (Layout::Flash, 32, Dtype::Bf16), Shard { layers, heads }, half)
    });
    round_trip(setup, &server, &kvasir, &text, &ranks, "ranks").await;
}

/// Whatever copy the driver refuses: the save says so, what it stored before stays, and the next save brings the rest.
#[tokio::test]
async fn a_device_that_refuses_a_copy_fails_the_save_and_nothing_else() {
    let setup = &setups()[0];
    let (server, kvasir, text) = stored(setup).await;
    let pages = Pages::new(&setup.spec, (Layout::Flash, 32, Dtype::Bf16), Shard::ALL, None);
    let _ = load(&kvasir, &text, vec![pages.table()], 1).await;
    let clean = connect(&server, setup, "clean").await;
    let before = pages.device.calls();
    let _ = save_pages(&clean, &text, vec![pages.table()]).await;
    let (copies, expected) = (pages.device.calls() - before, brought(&clean, setup, &text).await);
    assert!(copies >= 3 * 8, "{copies}: both planes of four layers, of three chunks");
    for n in 0..copies {
        let kvasir = connect(&server, setup, &format!("refused-{n}")).await;
        pages.device.refuse(n);
        let outcome = save_pages(&kvasir, &text, vec![pages.table()]).await;
        let SaveOutcome::Failed(Error::UnreadablePages { what }) = outcome else {
            panic!("copy {n}: {outcome:?}")
        };
        assert!(what.contains("OUT_OF_MEMORY"), "{what}");
        let found = kvasir.session(&text[..]).await.matched_tokens();
        assert_eq!(found, (n / (copies / 3) * 256) as u64, "copy {n} of {copies}");
        let again = save_pages(&kvasir, &text, vec![pages.table()]).await;
        assert!(matches!(again, SaveOutcome::Saved(_)), "copy {n}: {again:?}");
        assert!(brought(&kvasir, setup, &text).await.1.as_slice() == expected.1.as_slice(), "copy {n}");
    }
}

/// Given up after any number of turns of its task: the pages are somebody else's at once, and what was stored is whole.
#[tokio::test]
async fn a_save_may_be_dropped_at_any_point() {
    let setup = &setups()[0];
    let (server, kvasir, text) = stored(setup).await;
    let pages = Pages::new(&setup.spec, (Layout::Flash, 32, Dtype::Bf16), Shard::ALL, None);
    let _ = load(&kvasir, &text, vec![pages.table()], 1).await;
    let rows = pages.content();
    let clean = connect(&server, setup, "clean").await;
    let _ = save_pages(&clean, &text, vec![pages.table()]).await;
    let (objects, other) = (server.digests().len(), connect(&server, setup, "dropped").await);
    let (mut turns, mut given) = (0u32, 0);
    while other.saves().saved == 0 {
        let session = other.session(&text[..]).without_lookup().await;
        let ticket = session.save_pages([pages.table()], text.len()).expect("they hold everything");
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        drop(ticket);
        // Would wait forever for a claim that a copy left behind.
        pages.store.reassign(&pages.indices());
        pages.fill(&vec![0x3c; rows.len()]);
        (turns, given) = (turns + 1 + turns / 4, given + 1);
        let ended = || {
            let stats = other.saves();
            stats.saved + stats.cancelled + stats.failed
        };
        while ended() < given {
            tokio::task::yield_now().await;
        }
        pages.fill(&rows);
    }
    assert!(given > 5, "{given}");
    assert_eq!(server.digests().len(), objects + 3, "a chunk was stored with rows of the next request");
    assert!(
        brought(&other, setup, &text).await.1.as_slice() == brought(&clean, setup, &text).await.1.as_slice()
    );
}

#[tokio::test]
async fn pages_of_another_request_are_not_saved() {
    let setup = &setups()[0];
    let (server, kvasir, text) = stored(setup).await;
    let pages = Pages::new(&setup.spec, (Layout::Flash, 32, Dtype::Bf16), Shard::ALL, None);
    let table = pages.table();
    let _ = load(&kvasir, &text, vec![table.clone()], 1).await;
    // A page of the third chunk.
    pages.store.reassign(&pages.indices()[20..21]);
    let other = connect(&server, setup, "reassigned").await;
    let outcome = save_pages(&other, &text, vec![table]).await;
    let SaveOutcome::Failed(Error::UnreadablePages { what }) = outcome else { panic!("{outcome:?}") };
    assert!(what.contains("given to another request"), "{what}");
    assert_eq!(other.session(&text[..]).await.matched_tokens(), 512);
}

/// Reassigning waits for the copy that reads the page, not for the save.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_not_reassigned_while_it_is_read() {
    let setup = &setups()[0];
    let (server, kvasir, text) = stored(setup).await;
    let pages = Arc::new(Pages::new(&setup.spec, (Layout::Flash, 32, Dtype::Bf16), Shard::ALL, None));
    let _ = load(&kvasir, &text, vec![pages.table()], 1).await;
    let other = connect(&server, setup, "held").await;
    let (begun, has_begun) = mpsc::channel();
    let (go_on, may_end) = mpsc::channel();
    pages.device.hold_read(begun, may_end);
    let session = other.session(&text[..]).without_lookup().await;
    let ticket = session.save_pages([pages.table()], text.len()).expect("they hold everything");
    let reassigning = Arc::clone(&pages);
    tokio::task::spawn_blocking(move || {
        has_begun.recv_timeout(Duration::from_secs(20)).expect("the save reads");
        let (ended, has_ended) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                reassigning.store.reassign(&reassigning.indices()[..1]);
                ended.send(()).expect("is awaited");
            });
            assert!(has_ended.recv_timeout(Duration::from_millis(50)).is_err(), "it was being read");
            go_on.send(()).expect("the read waits");
            has_ended.recv_timeout(Duration::from_secs(20)).expect("nobody reads it any more");
        });
    })
    .await
    .expect("no panic");
    let outcome = ticket.outcome().await;
    assert!(matches!(outcome, SaveOutcome::Failed(Error::UnreadablePages { .. })), "{outcome:?}");
}
