//! From a configuration to a running service, and to its end.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::response::Response;
use hyper::{Request, body::Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto,
        graceful::{GracefulShutdown, Watcher},
    },
    service::TowerToHyperService,
};
use kvasir_storage::{
    RebuildProgress, Storage,
    hot::HotTier,
    index::{Index, IndexError},
    observe::StoreObserver,
    seal::KeyService,
    store::{OpenError, OpenStore},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use tower::{Service, ServiceExt};

use crate::{
    Config,
    auth::{AuthError, Authority, Peer},
    background,
    egress::Link,
    handlers,
    idle::{Activity, Watched},
    keys::{Keys, KeysError},
    limits,
    metrics::Metrics,
    ops_listener,
    peers::{Peers, Seat},
    state::AppState,
    tls::{Tls, TlsError},
};

/// A service that cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The address is taken or not ours.
    #[error("listening at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The listener is at an address that the configuration does not allow.
    #[error("the address {0}")]
    Address(String),
    /// Credentials that cannot be read.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// Certificates that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Keys that cannot be read.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The store's settings are impossible.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The index could not be rebuilt.
    #[error("rebuilding the hot index: {0}; what was indexed stays, run it again")]
    Rebuild(String),
    /// The hot tier's folder cannot be made or listed.
    #[error("the hot tier under {directory}: {source}; check hot.directory, or set hot.disk = 0")]
    Hot {
        /// The directory.
        directory: String,
        /// Why.
        source: std::io::Error,
    },
    /// The hot index cannot be kept where it should be.
    #[error("the hot index under {directory}: {source}; check cache.directory")]
    Index {
        /// The directory.
        directory: String,
        /// Why.
        source: IndexError,
    },
}

/// Listens where the configuration says.
///
/// # Errors
/// [`RunError::Listen`].
pub async fn listen(config: &Config) -> Result<TcpListener, RunError> {
    let address = config.server.listen;
    TcpListener::bind(address).await.map_err(|source| RunError::Listen { address, source })
}

/// Resolves on SIGTERM or SIGINT.
pub async fn shutdown_signal() {
    let interrupt = tokio::signal::ctrl_c();
    let mut terminate = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(signal) => signal,
        Err(error) => {
            tracing::error!(%error, "SIGTERM cannot be waited for");
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
/// The store need not answer at start: until it does, `/readyz` and every request say so.
///
/// # Errors
/// [`RunError`] when the service cannot start.
pub async fn run(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), RunError> {
    let address =
        listener.local_addr().map_err(|source| RunError::Listen { address: config.server.listen, source })?;
    if let Some(problem) = config.refuses_to_bind(address) {
        return Err(RunError::Address(problem));
    }
    for warning in &config.warnings {
        tracing::warn!(setting = %warning.place, "{}", warning.problem);
    }
    let metrics = Arc::new(Metrics::new());
    metrics.capacity(config.gc.policy.capacity_bytes);
    let authority = Authority::open(&config.auth)?;
    let tls = config.tls.as_ref().map(Tls::open).transpose()?;
    let keys = Keys::open(&config)?;
    let egress = config.server.egress_bytes_per_second;
    let link = (egress > 0).then(|| Link::new(egress));
    let state = AppState::new(Arc::clone(&metrics), authority, tls, keys, link);
    state.jobs().configure(config.gc.policy.clone());
    let store = sealed(OpenStore::open(&config.store, metrics)?, state.keys());
    let index = open_index(&config, &store)?;
    tracing::info!(%address, store = %config.store.url, index_rows = index.len(), "listening");
    warn_of_openness(&config, address);
    let hot = open_hot(&config, &state).await?;
    let _ops = ops_listener::open(&config, &state).await?;
    let mut starting = tokio::spawn(start(state.clone(), store, index, config.storage.clone(), hot));
    // Whoever connects now waits a little, rather than being told that the store has not answered yet.
    let early = tokio::time::timeout(limits::START_PATIENCE, &mut starting).await.is_ok();
    let mut background = background::start(&state, &config);
    serve(&config, &state, listener, shutdown).await;
    background.shutdown().await;
    if !early {
        starting.abort();
        let _ = starting.await;
    }
    background::finish(&state).await;
    tracing::info!("stopped");
    Ok(())
}

/// Fills the hot index of `config` from what the store holds, without serving.
///
/// # Errors
/// [`RunError`] when the index or the store cannot be opened, or the store cannot be reached or listed.
pub async fn rebuild_index(
    config: &Config,
    progress: impl FnMut(RebuildProgress),
) -> Result<RebuildProgress, RunError> {
    let store = open_store(config, Arc::new(Metrics::new()))?;
    let index = open_index(config, &store)?;
    let abilities = store.probe().await.map_err(|e| RunError::Rebuild(e.to_string()))?;
    let storage = Storage::new(store, abilities, index, config.storage.clone());
    storage.rebuild_index(progress).await.map_err(|e| RunError::Rebuild(e.to_string()))
}

fn warn_of_openness(config: &Config, address: SocketAddr) {
    match (config.has_auth(), address.ip().is_loopback()) {
        (false, true) => {
            tracing::info!("no authentication is configured; only this machine reaches the service")
        }
        (false, false) => {
            tracing::warn!(
                "requests are not authenticated: whoever reaches the port can read and write everything"
            );
        }
        (true, false) if config.tls.is_none() => {
            tracing::warn!(
                "credentials come in the clear: set tls.certificate_file, or keep TLS before the service"
            );
        }
        _ => {}
    }
}

/// The store of `config` with the keys of its tenants: what tools beside the service work on.
///
/// # Errors
/// [`RunError`] when the settings are impossible or the keys cannot be read.
pub fn open_store(config: &Config, observer: Arc<dyn StoreObserver>) -> Result<OpenStore, RunError> {
    let keys = Keys::open(config)?;
    Ok(sealed(OpenStore::open(&config.store, observer)?, keys.as_ref()))
}

fn sealed(store: OpenStore, keys: Option<&Keys>) -> OpenStore {
    match keys {
        Some(keys) => store.sealed(Arc::new(keys.clone())),
        None => store,
    }
}

fn open_index(config: &Config, store: &OpenStore) -> Result<Index, RunError> {
    let directory = config.cache.directory.clone();
    Index::sled(directory, store.identity, config.cache.index_memory_bytes)
        .map_err(|source| RunError::Index { directory: config.cache.directory.display().to_string(), source })
}

/// Opens the hot tier, if there is to be one: lists what lies in its folder.
async fn open_hot(config: &Config, state: &AppState) -> Result<Option<Arc<HotTier>>, RunError> {
    if !config.hot.is_on() {
        return Ok(None);
    }
    let keys = state.keys().map(|keys| Arc::new(keys.clone()) as Arc<dyn KeyService>);
    let settings = config.hot.settings(&config.cache.directory, keys);
    let directory = settings.directory.display().to_string();
    let (clock, observer) = (Arc::clone(&config.hot.clock), state.metrics().hot().clone());
    let opened = tokio::task::spawn_blocking(move || HotTier::open(settings, clock, observer));
    let opened = opened.await.map_err(std::io::Error::other).flatten();
    let tier = opened.map_err(|source| RunError::Hot { directory, source })?;
    tracing::info!(frames = tier.usage().disk_frames, bytes = tier.usage().disk_bytes, "hot tier");
    Ok(Some(tier))
}

/// Reaches the store, however long it takes, and starts the storage core over it.
async fn start(
    state: AppState,
    store: OpenStore,
    index: Index,
    settings: kvasir_storage::Settings,
    hot: Option<Arc<HotTier>>,
) {
    let mut pause = Duration::from_millis(200);
    let abilities = loop {
        match store.probe().await {
            Ok(abilities) => break abilities,
            Err(error) => tracing::error!(%error, "the store does not answer; trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(limits::START_PAUSE_MAX);
    };
    if !abilities.conditional_create {
        tracing::warn!(
            "the store has no conditional creates: it ignores or refuses them; nothing is at risk, but the first request of \
             a new tenant takes two seconds"
        );
    }
    if let Err(error) = store.probe_direct().await {
        tracing::warn!(%error, "whether the store checks uploads is not known: direct uploads are read whole");
    }
    state.start(Storage::with_hot(store, abilities, index, settings, hot));
    tracing::info!("ready");
}

async fn serve(config: &Config, state: &AppState, listener: TcpListener, shutdown: impl Future<Output = ()>) {
    let router = handlers::router(state.clone());
    let connections = Arc::new(Semaphore::new(config.server.connections_max));
    let peers = Peers::new(config.server.connections_per_address);
    let graceful = GracefulShutdown::new();
    let builder = connection_builder(config.server.connection_memory_bytes);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = async {
            let permit = Arc::clone(&connections).acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            accepted = accepted => accepted,
            () = &mut shutdown => break,
        };
        match (accepted, permit) {
            (Ok((stream, peer)), Ok(permit)) => {
                let Some(seat) = peers.seat(peer.ip()) else {
                    tracing::debug!(%peer, "an address has as many connections as it may");
                    continue;
                };
                let router = router.clone().map_request(from(Peer(peer.ip())));
                let talk = talk(state.clone(), stream, router, builder.clone(), graceful.watcher());
                tokio::spawn(connected(state.clone(), (permit, seat), talk));
            }
            (Err(error), _) => {
                // Out of descriptors, mostly: waiting is the only thing that helps.
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            (_, Err(_)) => break,
        }
    }
    state.drain();
    drop(listener);
    tracing::info!(grace = ?config.server.drain_grace, "draining");
    if tokio::time::timeout(config.server.drain_grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were cut off at the end of the grace");
    }
}

/// Tells the handlers where a request comes from.
fn from(peer: Peer) -> impl FnMut(Request<Incoming>) -> Request<Incoming> + Clone {
    move |mut request| {
        request.extensions_mut().insert(peer);
        request
    }
}

/// One connection, from its handshake to its end.
async fn talk<S>(
    state: AppState,
    stream: TcpStream,
    service: S,
    builder: auto::Builder<TokioExecutor>,
    watcher: Watcher,
) where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    // Responses are written whole; waiting for more to fill a packet costs 40 ms.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let activity = Activity::new();
    let counted = activity.clone();
    let service = service.map_future(move |answer| {
        let answering = counted.answering();
        async move {
            let answered = answer.await;
            drop(answering);
            answered
        }
    });
    let service = TowerToHyperService::new(service);
    let ended = match state.tls() {
        None => {
            let stream = TokioIo::new(Watched::new(stream, activity.clone()));
            let connection = builder.serve_connection_with_upgrades(stream, service);
            unless_idle(&activity, watcher.watch(connection.into_owned())).await
        }
        Some(tls) => {
            let handshake = tls.acceptor().accept(stream);
            match tokio::time::timeout(limits::TLS_HANDSHAKE_TIMEOUT, handshake).await {
                Ok(Ok(stream)) => {
                    let stream = TokioIo::new(Watched::new(stream, activity.clone()));
                    let connection = builder.serve_connection_with_upgrades(stream, service);
                    unless_idle(&activity, watcher.watch(connection.into_owned())).await
                }
                Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => return tracing::debug!("a TLS handshake took too long"),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection ended badly");
    }
}

/// The connection's end, which also comes when nothing moves on it any more.
async fn unless_idle<E: From<std::io::Error>>(
    activity: &Activity,
    connection: impl Future<Output = Result<(), E>>,
) -> Result<(), E> {
    tokio::select! {
        ended = connection => ended,
        () = activity.idle() => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

async fn connected(
    state: AppState,
    permit: (OwnedSemaphorePermit, Seat),
    connection: impl Future<Output = ()>,
) {
    state.metrics().connections(1);
    connection.await;
    state.metrics().connections(-1);
    drop(permit);
}

/// Connections whose buffers hold at most `memory_bytes`.
pub(crate) fn connection_builder(memory_bytes: u64) -> auto::Builder<TokioExecutor> {
    let buffer = memory_bytes.saturating_sub(limits::CONNECTION_MEMORY_REST_BYTES) / 2;
    let window = |times: u64| u32::try_from(memory_bytes.saturating_mul(times)).unwrap_or(u32::MAX >> 1);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_READ_TIMEOUT)
        .max_headers(limits::H1_HEADERS_MAX)
        .max_buf_size(buffer.min(limits::H1_BUFFER_BYTES_MAX) as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits::H2_STREAMS_MAX)
        .max_header_list_size(limits::H2_HEADER_BYTES_MAX)
        .initial_stream_window_size(window(limits::H2_STREAM_WINDOWS))
        .initial_connection_window_size(window(limits::H2_CONNECTION_WINDOWS))
        .keep_alive_interval(Duration::from_secs(20));
    builder
}
