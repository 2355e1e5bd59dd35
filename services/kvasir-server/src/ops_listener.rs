//! Probes and metrics at a separate address, over plain HTTP.
//!
//! A kubelet has no client certificate and a scraper often no CA, so they need this address if the service
//! uses TLS. It responds during a drain as well, when the main listener is already closed: `/livez` 200,
//! `/readyz` 503.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};

use crate::{
    background::repeat, background_task::BackgroundTask, config::Config, connection::connection_builder,
    connection_limiter::ConnectionLimiter, limits, router::ops_router, run_error::RunError, state::AppState,
};

/// Listens at `server.ops_listen`, if set, until the result is dropped.
///
/// # Errors
/// [`RunError::Listen`].
pub(crate) async fn open(config: &Config, state: &AppState) -> Result<JoinSet<()>, RunError> {
    let mut task = JoinSet::new();
    if let Some(address) = config.server.ops_listen {
        let listener =
            TcpListener::bind(address).await.map_err(|source| RunError::Listen { address, source })?;
        tracing::info!(%address, "listening for probes and metrics");
        let router = ops_router(state.clone());
        task.spawn(serve(listener, state.clone(), move || router.clone()));
    }
    Ok(task)
}

/// Accepts connections until it is dropped; `router` makes the service of each.
async fn serve(listener: TcpListener, state: AppState, router: impl Fn() -> Router) {
    let connections = Arc::new(Semaphore::new(limits::OPS_CONNECTIONS_MAX));
    let by_address = ConnectionLimiter::new(limits::OPS_CONNECTIONS_PER_ADDRESS_MAX);
    // A turn is one connection: if it panics, the others go on and the next is accepted.
    let turn = async move |_| {
        let permit = Arc::clone(&connections).acquire_owned().await.expect("is never closed");
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for probes or metrics");
                return tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        // No address alone keeps the kubelet out.
        let Some(of_address) = by_address.try_acquire(peer.ip()) else { return };
        let service = TowerToHyperService::new(router());
        tokio::spawn(async move {
            let builder = connection_builder(limits::CONNECTION_MEMORY_BYTES);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let ended = tokio::time::timeout(limits::OPS_CONNECTION_TIME_MAX, connection).await;
            if let Ok(Err(error)) = ended {
                tracing::debug!(error, "a connection for probes or metrics ended with an error");
            }
            drop((permit, of_address));
        });
    };
    repeat(BackgroundTask::OpsListener, state, || Duration::ZERO, turn).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::{auth::Authenticator, cluster::Cluster, journal_sync::JournalSync, metrics::Metrics};

    async fn status(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answers");
        answer.split_whitespace().nth(1).unwrap_or_default().to_owned()
    }

    fn unready() -> AppState {
        AppState::new(
            Arc::new(Metrics::new()),
            Authenticator::open(&Config::default()).expect("no files"),
            None,
            None,
            None,
            JournalSync::new(Duration::ZERO),
            Cluster::default(),
        )
    }

    #[tokio::test]
    async fn probes_and_metrics_and_nothing_else_through_a_drain_too() {
        let state = unready();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (mut task, router) = (JoinSet::new(), ops_router(state.clone()));
        task.spawn(serve(listener, state.clone(), move || router.clone()));
        // The store was never reached: alive, not ready.
        for (path, expected) in [
            ("/livez", "200"),
            ("/readyz", "503"),
            ("/metrics", "200"),
            ("/v1/config", "404"),
            ("/docs", "404"),
        ] {
            assert_eq!(status(address, path).await, expected, "{path}");
        }
        let mut held = Vec::new();
        for _ in 0..=limits::OPS_CONNECTIONS_PER_ADDRESS_MAX {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.bind(([127, 0, 0, 2], 0).into()).expect("any loopback address is ours");
            held.push(socket.connect(address).await.expect("connects"));
        }
        let mut last = held.pop().expect("the last");
        assert!(matches!(last.read(&mut [0]).await, Ok(0) | Err(_)), "it is closed");
        state.drain();
        assert_eq!(status(address, "/livez").await, "200", "another address");
        assert_eq!(status(address, "/readyz").await, "503");
        task.shutdown().await;
        assert!(tokio::net::TcpStream::connect(address).await.is_err(), "closed with its task");
    }

    /// Who asks for probes would take the replica for dead, and nobody would see its metrics.
    #[tokio::test]
    async fn after_a_panic_the_next_connection_is_accepted() {
        let state = unready();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (mut task, router) = (JoinSet::new(), ops_router(state.clone()));
        let accepted = AtomicUsize::new(0);
        let panics_once = move || {
            assert_ne!(accepted.fetch_add(1, Ordering::Relaxed), 0, "a bug");
            router.clone()
        };
        task.spawn(serve(listener, state.clone(), panics_once));
        let mut first = tokio::net::TcpStream::connect(address).await.expect("connects");
        assert!(matches!(first.read(&mut [0]).await, Ok(0) | Err(_)), "it is closed");
        assert_eq!(status(address, "/livez").await, "200");
        let text = String::from_utf8(state.metrics().render()).expect("text");
        assert!(text.contains("kvasir_background_panics_total{task=\"ops_listener\"} 1\n"), "{text}");
    }
}
