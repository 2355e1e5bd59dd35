//! The same calls for engines without an async runtime: each waits for its answer, on a runtime of its own.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//! use kvasir_client::{BlockTable, Client, ClientConfig, LoadEvent, StoreOptions, blocking::KvClient};
//! # fn example(spec: Arc<kvasir_types::ModelSpec>, profile: Arc<kvasir_codec::Profile>, prompt: &[u32],
//! #     table: BlockTable, kv: &dyn kvasir_codec::KvSource) -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("http://127.0.0.1:7480".parse()?, ClientConfig::default())?;
//! let store = KvClient::connect(client, spec, "chat".parse()?, profile)?;
//! let plan = store.lookup(prompt)?;
//! for event in store.load(plan, [table], store.options(Duration::from_millis(500)))? {
//!     match event {
//!         LoadEvent::LayerReady(layers) => { /* layers.layers of layers.token_range are in their pages */ }
//!         LoadEvent::Recompute { range, .. } => { /* compute these tokens */ }
//!         LoadEvent::Withdrawn { range } => { /* or not: they came first */ }
//!         LoadEvent::Done { report } => drop(report),
//!     }
//! }
//! # Ok(()) }
//! ```

use std::{sync::Arc, time::Duration};

use kvasir_codec::{KvSource, Profile};
use kvasir_types::{ModelSpec, Name, TokenRange};
use tokio::runtime::{Builder, Runtime};

use crate::{
    BlockTable, Client, ClientError, LoadEvent, LoadOptions, LoadPlan, LoadReport, QueueConfig, RequestClass,
    StoreOptions, StoreProgress, StoreQueue, StoreReport, limits::BLOCKING_WORKERS,
};

/// [`crate::KvClient`] with a small runtime of its own. Cheap to clone, `Send + Sync`. Not to be used, nor dropped last,
/// from within an async task.
#[derive(Debug, Clone)]
pub struct KvClient {
    inner: crate::KvClient,
    runtime: Arc<Runtime>,
}

impl KvClient {
    /// As [`crate::KvClient::connect`].
    ///
    /// # Errors
    /// As there; [`ClientError::Config`] when no thread can be started.
    pub fn connect(
        client: Client,
        spec: Arc<ModelSpec>,
        namespace: Name,
        profile: Arc<Profile>,
    ) -> Result<Self, ClientError> {
        let mut builder = Builder::new_multi_thread();
        let runtime =
            builder.worker_threads(BLOCKING_WORKERS).thread_name("kvasir-client").enable_all().build();
        let runtime =
            runtime.map_err(|e| ClientError::Config { what: format!("no runtime could be started: {e}") })?;
        let inner = runtime.block_on(crate::KvClient::connect(client, spec, namespace, profile))?;
        Ok(Self { inner, runtime: Arc::new(runtime) })
    }

    /// The same client with other settings (chunk length, bounds, decoders).
    ///
    /// # Errors
    /// Those of `change`.
    pub fn configured(
        self,
        change: impl FnOnce(crate::KvClient) -> Result<crate::KvClient, ClientError>,
    ) -> Result<Self, ClientError> {
        let inner = change(self.inner)?;
        Ok(Self { inner, runtime: self.runtime })
    }

    /// As [`crate::KvClient::for_request`].
    #[must_use]
    pub fn for_request(&self, class: RequestClass) -> Self {
        Self { inner: self.inner.for_request(class), runtime: Arc::clone(&self.runtime) }
    }

    /// The async client beneath.
    pub const fn inner(&self) -> &crate::KvClient {
        &self.inner
    }

    /// As [`crate::KvClient::options`].
    pub fn options(&self, slo: Duration) -> LoadOptions {
        self.inner.options(slo)
    }

    /// As [`crate::KvClient::lookup`].
    ///
    /// # Errors
    /// As there.
    pub fn lookup(&self, tokens: &[u32]) -> Result<LoadPlan, ClientError> {
        self.runtime.block_on(self.inner.lookup(tokens))
    }

    /// As [`crate::KvClient::load`]; the load goes on in the background between the iterator's steps.
    ///
    /// # Errors
    /// As there.
    pub fn load(
        &self,
        plan: LoadPlan,
        into: impl IntoIterator<Item = BlockTable>,
        options: LoadOptions,
    ) -> Result<Load, ClientError> {
        let load = self.inner.load(plan, into, options)?;
        Ok(Load { load, runtime: Arc::clone(&self.runtime) })
    }

    /// As [`crate::KvClient::store_kv_with`].
    ///
    /// # Errors
    /// As there.
    pub fn store_kv(
        &self,
        tokens: &[u32],
        kv: &dyn KvSource,
        options: &StoreOptions,
        progress: impl FnMut(StoreProgress) + Send,
    ) -> Result<StoreReport, ClientError> {
        self.runtime.block_on(self.inner.store_kv_with(tokens, kv, options, progress))
    }

    /// A queue that stores in the background; none of its calls waits, but for
    /// [`StoreTicket::wait`](crate::StoreTicket::wait).
    pub fn store_queue(&self, config: QueueConfig) -> StoreQueue {
        StoreQueue::new(self.inner.clone(), config)
    }
}

/// A load under way; each step waits for the next event. Dropping it cancels the load, as [`crate::Load`] says.
#[derive(Debug)]
pub struct Load {
    load: crate::Load,
    runtime: Arc<Runtime>,
}

impl Load {
    /// As [`crate::Load::computed`].
    pub fn computed(&self, range: TokenRange, took: Duration) {
        self.runtime.block_on(self.load.computed(range, took));
    }

    /// Waits for the end and gives the report alone; `None` when that was taken already.
    pub fn report(self) -> Option<LoadReport> {
        self.runtime.block_on(self.load.report())
    }
}

impl Iterator for Load {
    type Item = LoadEvent;

    fn next(&mut self) -> Option<LoadEvent> {
        self.runtime.block_on(self.load.next())
    }
}
