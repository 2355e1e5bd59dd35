//! Saves out of pages, one table a rank.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use common::{LAYERS, builder, connect, find, load, reference, save, spec, start, tokens};
use kvasir_client::{
    Error, Kvasir,
    pages::{BlockTable, HostPages, PageRead, PageRef, PageRows, PageStore, Shard},
    report::{ChunkOutcome, SaveOutcome},
    testing::Server,
    tuning::LoadOptions,
};
use kvasir_codec::KvSink;
use kvasir_types::Level;

const PAGE_TOKENS: usize = 24;

async fn other_namespace(server: &Server, name: &str) -> Kvasir {
    builder(server).namespace(name).connect().await.unwrap()
}

/// Pages of a rank.
fn rank(shard: Shard, tokens: usize) -> (Arc<HostPages>, BlockTable) {
    let pages = HostPages::new(&shard.part_of(&spec()), PAGE_TOKENS, tokens).unwrap();
    let table = pages.table().with_shard(shard);
    (pages, table)
}

#[tokio::test]
async fn what_ranks_hold_together_is_saved_as_one_source_would_be() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(700, 1);
    save(&kvasir, &text).await;
    let ranks = [
        rank(Shard { layers: 0..2, ..Shard::ALL }, 700),
        rank(Shard { layers: 2..LAYERS, heads: 0..1 }, 700),
        rank(Shard { layers: 2..LAYERS, heads: 1..2 }, 700),
    ];
    let tables = || ranks.each_ref().map(|(_, table)| table.clone());
    let options = LoadOptions::at_level(Level(1));
    let loaded = find(&kvasir, &text).await.load(tables(), options).unwrap().finish().await;
    assert_eq!(loaded.loaded_tokens(), 700);
    let (_, whole) = load(&find(&kvasir, &text).await, LoadOptions::at_level(Level(1))).await;

    let of_pages = other_namespace(&server, "pages").await;
    let session = of_pages.session(&text[..]).without_lookup().await;
    let outcome = session.save_pages(tables(), 700).unwrap().outcome().await;
    assert!(matches!(&outcome, SaveOutcome::Saved(report) if report.chunks.len() == 3), "{outcome:?}");
    let of_source = other_namespace(&server, "source").await;
    let session = of_source.session(&text[..]).without_lookup().await;
    session.save_now(&whole, 700, |_| ()).await.unwrap();
    for level in [0, 1] {
        let (a, b) = (reference(&of_pages, &text, level).await, reference(&of_source, &text, level).await);
        assert!(a.as_slice() == b.as_slice(), "level {level}");
    }
}

/// Pages that are read a number of times, and then no more.
struct Failing {
    pages: Arc<HostPages>,
    reads_left: AtomicUsize,
}

impl PageStore for Failing {
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
        self.pages.write(page, rows)
    }

    fn read_rows(&self, rows: &PageRead<'_>, to: &mut dyn KvSink) -> Result<bool, String> {
        let left =
            self.reads_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| "the device is gone".to_owned())?;
        self.pages.read_rows(rows, to)
    }
}

#[tokio::test]
async fn a_save_whose_pages_cannot_be_read_any_more_fails_and_keeps_what_is_stored() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(700, 2);
    let pages = HostPages::new(&spec(), PAGE_TOKENS, 700).unwrap();
    // The first chunk is read layer by layer, the second up to its third.
    let failing = Arc::new(Failing { pages: Arc::clone(&pages), reads_left: AtomicUsize::new(LAYERS + 2) });
    let refs: Vec<_> =
        (0..700u32.div_ceil(PAGE_TOKENS as u32)).map(|index| PageRef { index, generation: 0 }).collect();
    let table = BlockTable::new(failing, refs, PAGE_TOKENS).unwrap();
    let session = kvasir.session(&text[..]).without_lookup().await;
    let outcome = session.save_pages([table], 700).unwrap().outcome().await;
    let SaveOutcome::Failed(Error::UnreadablePages { what }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(what, "the device is gone");
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 256);
    // From pages that can be read, the rest is saved.
    let session = kvasir.session(&text[..]).without_lookup().await;
    let outcome = session.save_pages([pages.table()], 700).unwrap().outcome().await;
    let SaveOutcome::Saved(report) = outcome else { panic!("{outcome:?}") };
    let there: Vec<_> = report.chunks.iter().map(|c| c.outcome == ChunkOutcome::AlreadyThere).collect();
    assert_eq!(there, [true, false, false]);
}

/// Ranks share a latent, and heads if there are fewer of them than ranks.
#[tokio::test]
async fn what_two_ranks_hold_is_read_once() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(300, 5);
    let pages = HostPages::new(&spec(), PAGE_TOKENS, 300).unwrap();
    let never = Arc::new(Failing { pages: Arc::clone(&pages), reads_left: AtomicUsize::new(0) });
    let refs: Vec<_> =
        (0..300u32.div_ceil(PAGE_TOKENS as u32)).map(|index| PageRef { index, generation: 0 }).collect();
    let shared = BlockTable::new(never, refs, PAGE_TOKENS).unwrap();
    let shared = shared.with_shard(Shard { layers: 1..LAYERS, heads: 1..2 });
    let session = kvasir.session(&text[..]).without_lookup().await;
    let outcome = session.save_pages([pages.table(), shared], 300).unwrap().outcome().await;
    assert!(matches!(outcome, SaveOutcome::Saved(_)), "{outcome:?}");
}

#[tokio::test]
async fn pages_that_were_reassigned_are_not_saved() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(300, 3);
    let pages = HostPages::new(&spec(), PAGE_TOKENS, 300).unwrap();
    let table = pages.table();
    pages.reassign();
    let session = kvasir.session(&text[..]).without_lookup().await;
    let outcome = session.save_pages([table], 300).unwrap().outcome().await;
    let SaveOutcome::Failed(Error::UnreadablePages { what }) = outcome else { panic!("{outcome:?}") };
    assert!(what.contains("given to another request"), "{what}");
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 0);
    assert_eq!(kvasir.saves().failed, 1);
}

/// What nobody holds would be stored as zeros.
#[tokio::test]
async fn tables_that_do_not_hold_everything_are_refused() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(300, 4);
    let session = kvasir.session(&text[..]).without_lookup().await;
    let refused = |tables: Vec<BlockTable>| match session.save_pages(tables, 300) {
        Err(Error::Config { what }) => what,
        other => panic!("{other:?}"),
    };
    let (_, first) = rank(Shard { layers: 0..LAYERS, heads: 0..1 }, 300);
    let (_, lower) = rank(Shard { layers: 0..3, ..Shard::ALL }, 300);
    let (_, short) = rank(Shard::ALL, 200);
    for (tables, sentence) in [
        (vec![], "no table holds head 0 of layer 0"),
        (vec![first.clone()], "no table holds head 1 of layer 0"),
        (vec![first, lower], "no table holds head 1 of layer 3"),
        (vec![short], "a block table has 216 tokens, but 300 are to be saved"),
    ] {
        let what = refused(tables);
        assert!(what.contains(sentence), "{what}");
    }
}
