//! What tests of the collector's parts share.

use std::sync::Arc;

use kvasir_store::{OpenStore, StoreConfig, observe::NoObserver};

use crate::{Settings, Storage, index::Index};

pub(super) async fn storage() -> Arc<Storage> {
    storage_at("memory://").await
}

pub(super) async fn storage_at(url: &str) -> Arc<Storage> {
    let config = StoreConfig::new(url.parse().expect("a url"));
    let store = OpenStore::open(&config, Arc::new(NoObserver)).expect("opens");
    let abilities = store.probe().await.expect("answers");
    Storage::new(store, abilities, Index::memory(), Settings::new(std::env::temp_dir()), None)
}
