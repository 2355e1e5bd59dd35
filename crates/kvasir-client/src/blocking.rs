//! The blocking API for engines without an async runtime: methods that wait in the async API block here.
//! Methods that do not wait are those of the async types, available through `Deref`.
//!
//! ```no_run
//! use std::time::Duration;
//! use kvasir_client::{Deadline, Kvasir, blocking, pages::BlockTable};
//! # use kvasir_codec::{KvSource, Profile};
//! # use kvasir_types::ModelSpec;
//! # fn example(spec: ModelSpec, profile: Profile, prompt: &[u32], table: BlockTable, kv: &dyn KvSource)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! let kvasir = blocking::Kvasir::connect(Kvasir::builder("http://127.0.0.1:7480").model(spec).profile(profile))?;
//! let session = kvasir.session(prompt);
//! let loaded = session.load([table], Deadline::within(Duration::from_millis(500)))?.finish();
//! for range in loaded.missing() { /* prefill it */ }
//! session.save(kv, prompt.len()).in_background();
//! # Ok(()) }
//! ```

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use kvasir_codec::KvSource;
use kvasir_types::TokenRange;
use tokio::runtime::{Builder as RuntimeBuilder, Runtime};

use crate::{
    Builder, Error, LayerReady, Loaded,
    limits::BLOCKING_WORKERS,
    overlapped::LoadEvent,
    pages::BlockTable,
    report::{SaveProgress, SaveReport},
    session::SessionRequest,
    tuning::LoadOptions,
};

/// As [`crate::Kvasir`], with its own runtime. Do not use or drop it inside another runtime.
#[derive(Debug, Clone)]
pub struct Kvasir {
    inner: crate::Kvasir,
    runtime: Arc<Runtime>,
}

impl Deref for Kvasir {
    type Target = crate::Kvasir;

    fn deref(&self) -> &crate::Kvasir {
        &self.inner
    }
}

impl Kvasir {
    /// As [`Builder::connect`].
    ///
    /// # Errors
    /// As there; [`Error::Config`] if no thread can be started.
    pub fn connect(builder: Builder) -> Result<Self, Error> {
        let mut threads = RuntimeBuilder::new_multi_thread();
        let threads = threads.worker_threads(BLOCKING_WORKERS).thread_name("kvasir-client").enable_all();
        let runtime = threads
            .build()
            .map_err(|e| Error::Config { what: format!("no runtime could be started: {e}") })?;
        let inner = runtime.block_on(builder.connect())?;
        Ok(Self { inner, runtime: Arc::new(runtime) })
    }

    /// As [`crate::Kvasir::session`], already opened.
    pub fn session(&self, tokens: &[u32]) -> Session {
        self.session_with(tokens, |request| request)
    }

    /// As [`session`](Self::session), for a request with more than its tokens.
    pub fn session_with<'a>(
        &self,
        tokens: &'a [u32],
        describe: impl FnOnce(SessionRequest<'a>) -> SessionRequest<'a>,
    ) -> Session {
        let request = describe(self.inner.session(tokens));
        let inner = self.runtime.block_on(request.into_future());
        Session { inner, runtime: Arc::clone(&self.runtime) }
    }

    /// As [`crate::Kvasir::preload_profiles`].
    ///
    /// # Errors
    /// As there.
    pub fn preload_profiles(&self) -> Result<(), Error> {
        self.runtime.block_on(self.inner.preload_profiles())
    }

    /// As [`crate::Kvasir::drain`].
    pub fn drain(&self) {
        self.runtime.block_on(self.inner.drain());
    }
}

/// As [`crate::Session`].
#[derive(Debug)]
pub struct Session {
    inner: crate::Session,
    runtime: Arc<Runtime>,
}

impl Deref for Session {
    type Target = crate::Session;

    fn deref(&self) -> &crate::Session {
        &self.inner
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut crate::Session {
        &mut self.inner
    }
}

impl Session {
    /// As [`crate::Session::lookup`].
    ///
    /// # Errors
    /// As there.
    pub fn lookup(&mut self) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.lookup())
    }

    /// As [`crate::Session::load`].
    ///
    /// # Errors
    /// As there.
    pub fn load(
        &self,
        tables: impl IntoIterator<Item = BlockTable>,
        options: impl Into<LoadOptions>,
    ) -> Result<Load, Error> {
        Ok(Load { inner: self.inner.load(tables, options)?, runtime: Arc::clone(&self.runtime) })
    }

    /// As [`crate::Session::load_overlapped`].
    ///
    /// # Errors
    /// As there.
    pub fn load_overlapped(
        &self,
        tables: impl IntoIterator<Item = BlockTable>,
        options: impl Into<LoadOptions>,
    ) -> Result<OverlappedLoad, Error> {
        let inner = self.inner.load_overlapped(tables, options)?;
        Ok(OverlappedLoad { inner, runtime: Arc::clone(&self.runtime) })
    }

    /// As [`crate::Session::save_now`].
    ///
    /// # Errors
    /// As there.
    pub fn save_now(
        &self,
        kv: &dyn KvSource,
        tokens: usize,
        progress: impl FnMut(SaveProgress) + Send,
    ) -> Result<SaveReport, Error> {
        self.runtime.block_on(self.inner.save_now(kv, tokens, progress))
    }
}

/// As [`crate::Load`]. The load continues in the background between calls.
#[derive(Debug)]
#[must_use = "dropping a load cancels it"]
pub struct Load {
    inner: crate::Load,
    runtime: Arc<Runtime>,
}

impl Load {
    /// As [`crate::Load::next_layers`].
    pub fn next_layers(&mut self) -> Option<LayerReady> {
        self.runtime.block_on(self.inner.next_layers())
    }

    /// As [`crate::Load::finish`].
    pub fn finish(self) -> Loaded {
        self.runtime.block_on(self.inner.finish())
    }
}

/// As [`crate::overlapped::OverlappedLoad`].
#[derive(Debug)]
#[must_use = "dropping a load cancels it"]
pub struct OverlappedLoad {
    inner: crate::overlapped::OverlappedLoad,
    runtime: Arc<Runtime>,
}

impl OverlappedLoad {
    /// As [`crate::overlapped::OverlappedLoad::next`].
    #[allow(clippy::should_implement_trait, reason = "the name of its twin, which waits")]
    pub fn next(&mut self) -> Option<LoadEvent> {
        self.runtime.block_on(self.inner.next())
    }

    /// As [`crate::overlapped::OverlappedLoad::computed`].
    pub fn computed(&mut self, range: TokenRange, took: Duration) {
        self.runtime.block_on(self.inner.computed(range, took));
    }

    /// As [`crate::overlapped::OverlappedLoad::finish`].
    pub fn finish(self) -> Loaded {
        self.runtime.block_on(self.inner.finish())
    }
}
