//! The real binary in separate processes: killed at random moments, drained, behind a fault proxy, over a
//! full disk, and several over one store.
//!
//! A target of the package `kvasir-cli`, because cargo hands a binary's path only to its own package. Longer by
//! `KVASIR_TEST_KILLS=N`; real servers join by `tests/servers/run`.

#![allow(clippy::print_stdout, reason = "the figures of a run; --nocapture shows them")]

mod audit;
mod careless;
mod drain;
mod full_disk;
mod judged;
mod kills;
mod load;
mod proxied;
mod replicas;
mod secrets;

use kvasir_server::Layers;
use kvasir_store::StoreConfig;

/// The binary under test.
const SERVER: &str = env!("CARGO_BIN_EXE_kvasir");

fn file_store(directory: &std::path::Path) -> StoreConfig {
    StoreConfig::new(format!("file://{}/store", directory.display()).parse().expect("a url"))
}

/// A number from the environment: how much more to do than by default.
fn wanted(variable: &str, otherwise: u64) -> u64 {
    let env = Layers::from_process().env;
    let set = env.iter().find(|(name, _)| name == variable).map(|(_, value)| value);
    set.map_or(otherwise, |value| value.parse().unwrap_or_else(|e| panic!("{variable}={value}: {e}")))
}
