//! The calls for engines without an async runtime.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{collections::BTreeSet, time::Duration};

use common::{builder, kv, range, tokens};
use kvasir_client::{
    blocking,
    overlapped::LoadEvent,
    pages::{HostPages, Shard},
    report::SaveOutcome,
    tuning::LoadOptions,
};
use kvasir_types::Level;

#[test]
fn an_engine_without_a_runtime_loads_and_saves() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(common::start());
    let kvasir = blocking::Kvasir::connect(builder(&server)).unwrap();
    let text = tokens(600, 1);
    let session = kvasir.session(&text);
    assert_eq!(session.matched_tokens(), 0);
    assert!(matches!(session.save(&kv(&text), 600).wait(), SaveOutcome::Saved(_)));
    // Two ranks: each decodes its own head from the same bytes.
    let session = kvasir.session_with(&text, |request| request.turn(2));
    let ranks: Vec<_> = (0..2).map(|rank| Shard::tensor_parallel(rank, 2, 2)).collect();
    let pages: Vec<_> =
        ranks.iter().map(|shard| HostPages::new(&shard.part_of(&common::spec()), 16, 600).unwrap()).collect();
    let tables = || pages.iter().zip(&ranks).map(|(pages, shard)| pages.table().with_shard(shard.clone()));
    let options = || LoadOptions { last_token: false, ..LoadOptions::at_level(Level(1)) };
    let mut load = session.load(tables(), options()).unwrap();
    let mut ranks_seen = BTreeSet::new();
    while let Some(ready) = load.next_layers() {
        ranks_seen.insert(ready.rank);
    }
    assert_eq!(ranks_seen, BTreeSet::from([0, 1]));
    assert_eq!(load.finish().missing(), [range(599, 600)]);
    let mut load = session.load_overlapped(tables(), options()).unwrap();
    while let Some(event) = load.next() {
        if let LoadEvent::Compute { range, .. } = event {
            load.computed(range, Duration::from_millis(1));
        }
    }
    assert_eq!(load.finish().missing(), [], "the last token was computed meanwhile");
    let mut session = session;
    session.extend(&tokens(100, 2));
    assert_eq!(session.lookup().unwrap(), 592);
    kvasir.preload_profiles().unwrap();
    kvasir.drain();
}

/// Every method that waits has a twin of its name which blocks.
#[test]
fn what_waits_has_a_blocking_twin() {
    let twins = include_str!("../src/blocking.rs");
    let sources = [
        include_str!("../src/kvasir/mod.rs"),
        include_str!("../src/kvasir/builder.rs"),
        include_str!("../src/session/mod.rs"),
        include_str!("../src/load/loaded.rs"),
        include_str!("../src/overlapped.rs"),
    ];
    let names = sources.iter().flat_map(|source| source.split("    pub async fn ").skip(1));
    let names: BTreeSet<&str> = names.map(|rest| rest.split('(').next().unwrap()).collect();
    assert!(names.contains("finish") && names.len() > 6, "{names:?}");
    for name in names {
        assert!(twins.contains(&format!("    pub fn {name}(")), "blocking.rs has no `{name}`");
    }
}
