//! Starts a service from a configuration, and runs it to its end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use futures::{
    FutureExt,
    future::{FusedFuture, join_all},
};
use hyper_util::{rt::TokioExecutor, server::conn::auto};
use kvasir_storage::{
    Storage,
    hot::{HotSettings, HotTier},
    index::{Index, IndexError},
    private_directory,
};
use kvasir_store::{FormerLayout, OpenStore, StoreKind, observe::StoreObserver, seal::KeyService};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinError,
};
use tower::ServiceExt;

use crate::{
    auth::{Authenticator, network},
    background,
    cluster::Cluster,
    config::Config,
    connection::{connection_builder, serve_connection, track_connection, with_peer_address},
    connection_limiter::ConnectionLimiter,
    egress::EgressScheduler,
    encryption_keys::EncryptionKeys,
    journal_sync::JournalSync,
    limits,
    metrics::{CachePart, Metrics},
    middleware::authorize::PeerAddress,
    ops_listener,
    router::router,
    run_error::RunError,
    s3,
    state::AppState,
    tls::Tls,
};

/// The listeners of the service.
#[derive(Debug)]
pub struct Listeners {
    api: TcpListener,
    s3: Option<TcpListener>,
}

impl Listeners {
    /// The address of the API.
    ///
    /// # Errors
    /// If the socket does not know its address.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.api.local_addr()
    }

    /// The address of the S3 front end; `None` if it is disabled.
    pub fn s3_address(&self) -> Option<SocketAddr> {
        self.s3.as_ref().and_then(|listener| listener.local_addr().ok())
    }
}

/// Opens the configured listeners.
///
/// # Errors
/// [`RunError::Listen`].
pub async fn listen(config: &Config) -> Result<Listeners, RunError> {
    let bind = |address| async move {
        TcpListener::bind(address).await.map_err(|source| RunError::Listen { address, source })
    };
    let s3 = match config.server.s3_listen {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    Ok(Listeners { api: bind(config.server.listen).await?, s3 })
}

/// Resolves on SIGTERM or SIGINT.
pub async fn shutdown_signal() {
    let interrupt = tokio::signal::ctrl_c();
    let mut terminate = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(signal) => signal,
        Err(error) => {
            tracing::error!(%error, "cannot install the SIGTERM handler");
            return std::future::pending().await;
        }
    };
    tokio::select! {
        _ = interrupt => {}
        _ = terminate.recv() => {}
    }
}

/// Serves until `shutdown`, then lets running requests finish within `server.drain_grace`.
///
/// The store need not respond at start: until it does, `/readyz` and every request return an error that says
/// so.
///
/// # Errors
/// [`RunError`] if the service cannot start.
pub async fn run(
    config: Config,
    listeners: Listeners,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), RunError> {
    let address =
        listeners.address().map_err(|source| RunError::Listen { address: config.server.listen, source })?;
    let s3_address = listeners.s3_address();
    if let Some(problem) =
        [Some(address), s3_address].into_iter().flatten().find_map(|address| config.refuses_to_bind(address))
    {
        return Err(RunError::Address(format!("the address {problem}")));
    }
    let metrics = Arc::new(Metrics::new());
    metrics.capacity(config.gc.policy.capacity_bytes);
    metrics.gc_interval(config.gc.interval);
    let authenticator = Authenticator::open(&config).map_err(RunError::Files)?;
    let tls = config.tls.as_ref().map(Tls::open).transpose().map_err(RunError::Files)?;
    let keys = EncryptionKeys::open(&config).map_err(RunError::Files)?;
    if let Some(keys) = &keys {
        keys.log_tenants();
    }
    let egress = config.server.egress_bytes_per_second;
    let egress = (egress > 0).then(|| EgressScheduler::new(egress, Arc::clone(&metrics)));
    let cluster = Cluster::new(config.cluster.clone(), config.tls.is_some());
    let state = AppState::new(
        Arc::clone(&metrics),
        authenticator,
        tls,
        keys,
        egress,
        JournalSync::new(config.journal.interval),
        cluster,
    );
    state.jobs().set_gc_policy(config.gc.policy.clone());
    let store = with_encryption(OpenStore::open(&config.store, metrics)?, state.keys());
    let index = open_index(&config, &store, &state)?;
    // Uploads make it where it is missing, and leave one that is there as it is.
    let spool = &config.storage.spool_directory;
    if let Err(error) = private_directory(spool) {
        tracing::warn!(%error, directory = ?spool, "uploads cannot wait on disk; check cache.directory");
    }
    tracing::info!(%address, store = %config.store.url, index_rows = index.len(), "listening");
    warn_if_unprotected(&config, address);
    let hot = open_hot_tier(&config, store.kind(), &state).await;
    let _ops = ops_listener::open(&config, &state).await?;
    let mut served = vec![(listeners.api, router(state.clone()))];
    if let Some(listener) = listeners.s3 {
        tracing::info!(address = s3_address.map(tracing::field::display), "listening for S3 clients");
        let front = s3::router(state.clone(), &config.server.s3_domains).map_err(RunError::Address)?;
        served.push((listener, front));
    }
    let starting = tokio::spawn(connect_store(state.clone(), store, index, config.clone(), hot));
    let abort = starting.abort_handle();
    let mut starting = starting.fuse();
    // Let early connections wait briefly rather than fail because the store has not responded yet.
    if let Ok(ended) = tokio::time::timeout(limits::STORE_WAIT_AT_START_MAX, &mut starting).await {
        without_panic(ended)?;
    }
    let mut background = background::start(&state, &config);
    let mut refused = Ok(());
    let stop = async {
        tokio::select! {
            () = shutdown => {}
            Err(error) = async { without_panic((&mut starting).await) } => refused = Err(error.into()),
        }
    };
    serve(&config, &state, served, stop).await;
    background.shutdown().await;
    if !starting.is_terminated() {
        abort.abort();
        let _ = starting.await;
    }
    background::flush(&state).await;
    tracing::info!("stopped");
    refused
}

/// The result of connecting to the store. A service that panicked there would never become ready, so it ends.
fn without_panic(ended: Result<Result<(), FormerLayout>, JoinError>) -> Result<(), FormerLayout> {
    ended.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Ok(()),
    })
}

fn warn_if_unprotected(config: &Config, address: SocketAddr) {
    match (config.has_auth(), address.ip().is_loopback()) {
        (false, true) => {
            tracing::info!("no authentication is configured; only this machine can reach the service")
        }
        (false, false) => {
            tracing::warn!(
                "requests are not authenticated: anyone who reaches the port can read and write everything"
            );
        }
        (true, false) if config.tls.is_none() => {
            tracing::warn!(
                "credentials are sent unencrypted: set tls.certificate_file, or terminate TLS in front of the service"
            );
        }
        _ => {}
    }
}

/// The store of `config` with the keys of its tenants, for tools that run next to the service.
///
/// # Errors
/// [`RunError`] if the settings are invalid or the keys cannot be read.
pub fn open_store(config: &Config, observer: Arc<dyn StoreObserver>) -> Result<OpenStore, RunError> {
    let keys = EncryptionKeys::open(config).map_err(RunError::Files)?;
    Ok(with_encryption(OpenStore::open(&config.store, observer)?, keys.as_ref()))
}

fn with_encryption(store: OpenStore, keys: Option<&EncryptionKeys>) -> OpenStore {
    match keys {
        Some(keys) => store.sealed(Arc::new(keys.clone())),
        None => store,
    }
}

/// Opens the hot index. It is only a cache: if the disk is full or read-only, the service continues with one
/// in memory.
fn open_index(config: &Config, store: &OpenStore, state: &AppState) -> Result<Index, RunError> {
    let (directory, memory_bytes) = (&config.cache.directory, config.cache.index_memory_bytes);
    match Index::sled(directory.clone(), store.identity(), memory_bytes) {
        Ok(index) => Ok(index),
        Err(source @ IndexError::Locked) => {
            Err(RunError::Index { directory: directory.display().to_string(), source })
        }
        Err(error) => {
            tracing::warn!(%error, ?directory, "the hot index cannot be opened and stays in memory until the next start; check cache.directory");
            state.metrics().health().cache_unusable(CachePart::Index);
            Ok(Index::memory_within(memory_bytes))
        }
    }
}

/// Opens the hot tier, if there is one: lists the frames in its folder. Without a usable folder it uses
/// memory only.
async fn open_hot_tier(config: &Config, store: StoreKind, state: &AppState) -> Option<Arc<HotTier>> {
    let keys = state.keys().map(|keys| Arc::new(keys.clone()) as Arc<dyn KeyService>);
    let settings = config.hot.settings(store, &config.cache.directory, keys)?;
    let in_memory = HotSettings { disk_bytes: 0, ..settings.clone() };
    let open = async |settings: HotSettings| {
        let (clock, observer) = (Arc::clone(&config.hot.clock), state.metrics().hot().clone());
        let opened = tokio::task::spawn_blocking(move || HotTier::open(settings, clock, observer));
        opened.await.map_err(std::io::Error::other).flatten()
    };
    let directory = settings.directory.clone();
    let mut opened = open(settings).await;
    if let Err(error) = &opened {
        tracing::warn!(%error, ?directory, "the hot tier cannot use its disk until the next start; check hot.directory");
        state.metrics().health().cache_unusable(CachePart::HotTier);
        if in_memory.ram_bytes > 0 {
            opened = open(in_memory).await;
        }
    }
    let tier = opened.ok()?;
    tracing::info!(
        frames = tier.usage().disk_frames,
        bytes = tier.usage().disk_bytes,
        "the hot tier is open"
    );
    Some(tier)
}

/// Connects to the store, however long it takes, and starts the storage core over it.
async fn connect_store(
    state: AppState,
    store: OpenStore,
    index: Index,
    config: Config,
    hot: Option<Arc<HotTier>>,
) -> Result<(), FormerLayout> {
    let mut pause = Duration::from_millis(200);
    let abilities = loop {
        match futures::try_join!(store.former_layout(), store.probe()) {
            Ok((Some(former), _)) => return Err(former),
            Ok((None, abilities)) => break abilities,
            Err(error) => tracing::error!(%error, "the store does not respond; trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(limits::STORE_RETRY_PAUSE_MAX);
    };
    if !abilities.conditional_create {
        tracing::warn!(
            "the store has no conditional creates: it ignores or refuses them; nothing is at risk, but the first request of \
             a new tenant takes two seconds"
        );
    }
    if let Err(error) = store.probe_direct().await {
        tracing::warn!(%error, "cannot determine whether the store verifies uploads; direct uploads will be read back in full");
    }
    let storage = Storage::new(store, abilities, index, config.storage, hot);
    let kept = config.gc.policy.removals_kept();
    if storage.changes().empty_outdated_index() {
        tracing::warn!(
            ?kept,
            "the hot index was emptied: this replica was away for longer than the journal keeps removals; it fills again from \
             the store"
        );
    }
    state.set_storage(storage);
    tracing::info!("ready");
    Ok(())
}

/// Shared by all listeners: limits on their connections, and their shutdown.
struct Connections {
    all: Arc<Semaphore>,
    of_addresses: ConnectionLimiter,
    /// Told once; each connection keeps a receiver until its end.
    draining: watch::Sender<()>,
    builder: auto::Builder<TokioExecutor>,
}

async fn serve(
    config: &Config,
    state: &AppState,
    listeners: Vec<(TcpListener, Router)>,
    shutdown: impl Future<Output = ()>,
) {
    let connections = Connections {
        all: Arc::new(Semaphore::new(config.server.connections_max)),
        of_addresses: ConnectionLimiter::new(config.server.connections_per_address),
        draining: watch::Sender::new(()),
        builder: connection_builder(config.server.connection_memory_bytes),
    };
    let accepting =
        listeners.into_iter().map(|(listener, router)| accept(state, listener, router, &connections));
    tokio::select! {
        _ = join_all(accepting) => {}
        () = shutdown => {}
    }
    state.drain();
    tracing::info!(grace = ?config.server.drain_grace, "draining");
    connections.draining.send_replace(());
    if tokio::time::timeout(config.server.drain_grace, connections.draining.closed()).await.is_err() {
        tracing::warn!("requests were cut off at the end of the drain grace period");
    }
}

/// Serves the connections of one listener, which is closed when the future is dropped.
async fn accept(state: &AppState, listener: TcpListener, router: Router, connections: &Connections) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // A listener without callers must hold none.
                let Ok(permit) = Arc::clone(&connections.all).acquire_owned().await else { return };
                let Some(permit_of_address) = connections.of_addresses.try_acquire(network(peer.ip())) else {
                    tracing::debug!(%peer, "an address has reached its connection limit");
                    continue;
                };
                let router = router.clone().map_request(with_peer_address(PeerAddress(peer.ip())));
                let (builder, draining) = (connections.builder.clone(), connections.draining.subscribe());
                let serving = serve_connection(state.clone(), stream, router, builder, draining);
                tokio::spawn(track_connection(state.clone(), (permit, permit_of_address), serving));
            }
            Err(error) => {
                // Mostly out of descriptors: waiting is the only remedy.
                tracing::warn!(%error, "cannot accept a connection; check the limit on open files");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
