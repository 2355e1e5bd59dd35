//! One suite over every object store: the properties that the service needs, those that each store lacks, and
//! the storage core over each.
//!
//! `tests/servers/run` runs it with real servers beside it. Any other server joins with
//! `KVASIR_TEST_S3=s3://bucket/prefix` and the usual `AWS_*` variables.

#![allow(clippy::print_stdout, reason = "what a store lacks is the suite's result; --nocapture shows it")]

mod backup;
mod hot_frames;
mod listing;
mod lost_removals;
mod members;
mod multipart;
mod opaque;
mod opaque_writers;
mod pins;
mod reading;
mod removal;
mod replicas;
mod scrubs;
mod semantics;
mod storage_core;
mod table;

use std::sync::Arc;

use futures::TryStreamExt;
use kvasir_server::Layers;
use kvasir_storage::{Settings, Storage, index::Index};
use kvasir_store::{OpenStore, StoreConfig, StoreKind, observe::NoObserver};
use kvasir_tests::{
    hooked::{Hook, HookedStore},
    s3::{Conditions, Lacks, S3Server},
    servers::RealServer,
};
use object_store::path::Path;
use tempfile::TempDir;

/// A store to test, and the handles that keep it alive.
pub(crate) struct Backend {
    name: String,
    config: StoreConfig,
    shared: Option<OpenStore>,
    directory: TempDir,
    server: Option<S3Server>,
}

impl Backend {
    fn new(name: &str, config: StoreConfig) -> Self {
        let name = name.to_owned();
        Self { name, config, shared: None, directory: TempDir::new().expect("a directory"), server: None }
    }

    fn file() -> Self {
        let mut this = Self::new("local file system", config("memory://"));
        this.config = config(&format!("file://{}/store", this.directory.path().display()));
        this
    }

    fn memory() -> Self {
        let mut this = Self::new("memory", config("memory://"));
        // Every opening of memory:// is another store; replicas of a test share one.
        this.shared = Some(OpenStore::open(&this.config, Arc::new(NoObserver)).expect("opens"));
        this
    }

    async fn s3(name: &'static str, lacks: Lacks) -> Self {
        let server = S3Server::start(lacks).await;
        Self { server: Some(server), ..Self::new(name, config("memory://")) }.at_server()
    }

    async fn careless(conditional_writes: Conditions) -> Self {
        let lacks = Lacks { conditional_writes, ..Lacks::default() };
        Self::s3("in-process S3 without conditional writes", lacks).await
    }

    fn at_server(mut self) -> Self {
        if let Some(server) = &self.server {
            self.config = server.config("some/prefix");
        }
        self
    }

    /// The available real servers, each with a separate prefix.
    fn real(test: &str) -> Vec<Self> {
        let prefix = format!("{test}-{}", std::process::id());
        let servers = RealServer::all();
        let mut all: Vec<_> =
            servers.iter().map(|server| Self::new(&server.name, server.config(&prefix))).collect();
        let layers = Layers::from_process();
        let wanted = |name: &str| layers.env.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        if let Some(url) = wanted("KVASIR_TEST_S3") {
            let config =
                layers.clone().with_flags([("store.url", format!("{url}/{prefix}").as_str())]).load();
            let config = config.expect("KVASIR_TEST_S3 and AWS_* make a configuration");
            all.push(Self::new("the server of KVASIR_TEST_S3", config.store));
        }
        all
    }

    fn open(&self) -> OpenStore {
        let open = || OpenStore::open(&self.config, Arc::new(NoObserver)).expect("opens");
        self.shared.clone().unwrap_or_else(open)
    }

    /// All paths that contain `part`.
    async fn paths(&self, part: &str) -> Vec<String> {
        let open = self.open();
        let listed = open.objects().list(Some(open.layout().base()));
        let paths = listed.map_ok(|meta| meta.location.to_string()).try_collect::<Vec<_>>().await;
        paths.expect("lists").into_iter().filter(|path| path.contains(part)).collect()
    }

    /// A separate replica: only the store is shared.
    async fn replica(&self) -> Arc<Storage> {
        self.replica_with(|_| {}).await
    }

    /// The replica that has the only disk, restarted.
    async fn replica_on_disk(&self, change: impl FnOnce(&mut Settings)) -> Arc<Storage> {
        let store = self.open();
        let abilities = store.probe().await.expect("the store answers");
        let index =
            Index::sled(self.directory.path().join("index"), store.identity(), 1 << 20).expect("opens");
        let mut settings = Settings::new(self.directory.path().join("spool"));
        change(&mut settings);
        Storage::new(store, abilities, index, settings, None)
    }

    async fn replica_with(&self, change: impl FnOnce(&mut Settings)) -> Arc<Storage> {
        self.replica_over(self.open(), change).await
    }

    /// A replica whose requests to the store a test hears of.
    async fn hooked_replica(&self, hook: Hook) -> Arc<Storage> {
        self.replica_over(self.open_hooked(hook), |_| {}).await
    }

    fn open_hooked(&self, hook: Hook) -> OpenStore {
        self.open_hooked_as(StoreKind::Memory, hook)
    }

    fn open_hooked_as(&self, kind: StoreKind, hook: Hook) -> OpenStore {
        let store = HookedStore::new(self.open().objects().clone(), hook);
        OpenStore::with(store, &Path::default(), kind, &self.config, Arc::new(NoObserver))
    }

    async fn replica_over(&self, store: OpenStore, change: impl FnOnce(&mut Settings)) -> Arc<Storage> {
        let abilities = store.probe().await.expect("the store answers");
        let mut settings = Settings::new(self.directory.path().join("spool"));
        change(&mut settings);
        Storage::new(store, abilities, Index::memory(), settings, None)
    }
}

fn config(url: &str) -> StoreConfig {
    StoreConfig::new(url.parse().expect("a url"))
}

/// Makes a test of each case for each backend.
macro_rules! suite {
    ($($module:ident::$name:ident),* $(,)?) => {
        mod file { $(#[tokio::test] async fn $name() { crate::$module::$name(&super::Backend::file()).await; })* }
        mod memory { $(#[tokio::test] async fn $name() { crate::$module::$name(&super::Backend::memory()).await; })* }
        mod s3_in_process {
            $(#[tokio::test] async fn $name() {
                crate::$module::$name(&super::Backend::s3("in-process S3", super::Lacks::default()).await).await;
            })*
        }
        mod s3_ignoring_conditions {
            $(#[tokio::test] async fn $name() {
                crate::$module::$name(&super::Backend::careless(super::Conditions::Ignored).await).await;
            })*
        }
        mod s3_refusing_conditions {
            $(#[tokio::test] async fn $name() {
                crate::$module::$name(&super::Backend::careless(super::Conditions::Refused).await).await;
            })*
        }
        /// Every case on every real server.
        #[tokio::test]
        async fn real_servers() {
            // Each case under a prefix of its own.
            $(for backend in Backend::real(stringify!($name)) {
                println!("{}: {}", backend.name, stringify!($name));
                crate::$module::$name(&backend).await;
            })*
        }
    };
}

suite! {
    semantics::creates_are_exclusive_or_the_probe_says_so,
    semantics::ranges_are_exact,
    semantics::listings_are_complete_and_by_segment,
    semantics::parts_are_invisible_until_completed,
    semantics::overwriting_and_deleting,
    storage_core::a_chunk_is_found_by_another_replica,
    storage_core::blocks_match_after_a_rebuild,
    storage_core::large_chunks_go_in_parts,
    storage_core::announced_chunks_go_in_as_they_come,
    storage_core::uploads_that_nobody_finished_go,
    storage_core::storing_twice_is_storing_once,
    storage_core::replicas_agree_on_roots_and_objects,
    storage_core::a_vanished_object_becomes_a_miss,
    storage_core::invalid_bodies_leave_nothing,
    storage_core::an_object_that_was_cut_is_damaged,
    storage_core::other_bytes_under_a_name_are_noticed,
    replicas::removed_chunks_hide_and_go_and_come_back_under_another_name,
    replicas::duplicates_and_expired_chunks_go,
    replicas::the_members_of_a_cluster_divide_a_pass,
    replicas::a_collector_that_slept_deletes_nothing_that_was_stored_since,
    replicas::blocks_match_on_other_replicas_through_the_journal,
    replicas::an_acknowledged_removal_survives_its_replica,
    replicas::an_append_that_is_dropped_is_made_again,
    replicas::an_index_older_than_the_journal_is_emptied,
    replicas::a_removal_outlives_its_batch_in_the_index,
    reading::a_replica_that_reads_removals_alone_asks_the_store_for_the_rest,
    reading::one_replica_keeps_accounts_for_all,
    listing::lists_are_in_order_and_whole,
    listing::lists_have_what_can_be_read,
    multipart::parts_become_an_object,
    multipart::sealed_objects_go_in_parts,
    opaque::a_key_keeps_its_bytes,
    opaque::a_body_is_as_long_as_was_said,
    opaque::the_leading_keys_that_are_there,
    opaque::a_removed_key_takes_other_bytes,
    opaque::a_writer_need_not_hear_of_a_removal,
    opaque::of_writers_that_meet_one_wins,
    opaque::equal_objects_have_one_etag,
    opaque::a_rotated_salt_frees_no_key,
    opaque::damage_is_never_served,
    opaque::objects_are_rebuilt_scrubbed_and_expire,
    removal::removing_a_chunk_hides_however_many_objects_it_has,
    removal::a_fresh_lookup_offers_none_of_many_removed_objects,
    removal::a_sample_has_what_is_stored_and_not_what_is_removed,
    removal::a_fresh_lookup_cuts_nobody_off_from_what_the_collector_took,
    removal::a_removed_object_is_served_by_no_name,
    removal::a_chunk_stored_after_many_removals_is_found_and_removed_again,
    removal::removing_a_chunk_hides_objects_that_only_have_a_tombstone,
    removal::a_removal_that_was_never_announced_is_heard_of_when_the_bytes_go,
}
