//! One connection: handshake, requests, idle timeout, buffers.

use std::{convert::Infallible, future::pending, io, pin::pin, time::Duration};

use axum::response::Response;
use hyper::{Request, body::Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulConnection},
    service::TowerToHyperService,
};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, watch},
};
use tower::{Service, ServiceExt};

use crate::{
    connection_limiter::ConnectionPermit,
    gathered_body::{GatherLimit, GatheredBody},
    idle_timer::{IdleTimer, TimedStream},
    limits,
    middleware::authorize::PeerAddress,
    state::AppState,
};

/// Adds the peer's address to the extensions of every request.
pub(crate) fn with_peer_address(
    peer: PeerAddress,
) -> impl FnMut(Request<Incoming>) -> Request<Incoming> + Clone {
    move |mut request| {
        request.extensions_mut().insert(peer);
        request
    }
}

/// Serves one connection, from its handshake to its end.
pub(crate) async fn serve_connection<S>(
    state: AppState,
    stream: TcpStream,
    service: S,
    builder: auto::Builder<TokioExecutor>,
    draining: watch::Receiver<()>,
) where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    // Responses are written whole; waiting to fill a packet costs 40 ms.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let timer = IdleTimer::new();
    let (request_timer, gather_limit) = (timer.clone(), GatherLimit::new());
    let service = service.map_future(move |answer| {
        let (request, limit) = (request_timer.track_request(), gather_limit.clone());
        let timer = request_timer.clone();
        async move {
            let answered = answer.await;
            drop(request);
            answered.map(|response| response.map(|body| GatheredBody::new(body, limit, timer)))
        }
    });
    let service = TowerToHyperService::new(service);
    let ended = match state.tls() {
        None => {
            let stream = TokioIo::new(TimedStream::new(stream, timer.clone()));
            let connection = builder.serve_connection_with_upgrades(stream, service);
            until_ended(connection.into_owned(), &timer, draining, pending()).await
        }
        Some(tls) => {
            let (handshake, reloads) = tls.accept(stream);
            match tokio::time::timeout(limits::TLS_HANDSHAKE_TIMEOUT, handshake).await {
                Ok(Ok(stream)) => {
                    let client =
                        stream.get_ref().1.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
                    let refused = tls.refused(&client, reloads);
                    let stream = TokioIo::new(TimedStream::new(stream, timer.clone()));
                    let connection = builder.serve_connection_with_upgrades(stream, service);
                    until_ended(connection.into_owned(), &timer, draining, refused).await
                }
                Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => return tracing::debug!("a TLS handshake timed out"),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection ended with an error");
    }
}

/// Waits for the end of a connection. Closes it when the timer expires. Once the service drains or the client is refused, its
/// requests may end first; a refused client has [`limits::CREDENTIAL_LOOK_EVERY`] for that.
async fn until_ended<C>(
    connection: C,
    timer: &IdleTimer,
    mut draining: watch::Receiver<()>,
    refused: impl Future<Output = ()>,
) -> Result<(), C::Error>
where
    C: GracefulConnection,
    C::Error: From<io::Error>,
{
    let (mut connection, mut refused) = (pin!(connection), pin!(refused));
    let is_refused = tokio::select! {
        ended = &mut connection => return ended,
        () = timer.expired() => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        _ = draining.changed() => false,
        () = &mut refused => true,
    };
    connection.as_mut().graceful_shutdown();
    let cut_off = async {
        if !is_refused {
            refused.await;
        }
        tokio::time::sleep(limits::CREDENTIAL_LOOK_EVERY).await;
    };
    tokio::select! {
        ended = connection => ended,
        () = timer.expired() => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        () = cut_off => Err(io::Error::from(io::ErrorKind::PermissionDenied).into()),
    }
}

/// Counts a connection while it is served. If it panics, it alone ends.
pub(crate) async fn track_connection(
    state: AppState,
    permits: (OwnedSemaphorePermit, ConnectionPermit),
    connection: impl Future<Output = ()>,
) {
    let _counted = CountedConnection::new(state);
    connection.await;
    drop(permits);
}

/// A connection in the metrics, until it is dropped.
struct CountedConnection(AppState);

impl CountedConnection {
    fn new(state: AppState) -> Self {
        state.metrics().connections(1);
        Self(state)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.metrics().connections(-1);
    }
}

/// Connections whose buffers hold at most `memory_bytes`.
pub(crate) fn connection_builder(memory_bytes: u64) -> auto::Builder<TokioExecutor> {
    let buffer = memory_bytes.saturating_sub(limits::CONNECTION_MEMORY_OVERHEAD_BYTES) / 2;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hyper::service::service_fn;
    use tokio::{
        io::AsyncWriteExt,
        sync::Semaphore,
        time::{Instant, sleep, timeout},
    };

    use super::*;
    use crate::{
        auth::Authenticator, cluster::Cluster, config::Config, connection_limiter::ConnectionLimiter,
        journal_sync::JournalSync, metrics::Metrics,
    };

    #[tokio::test]
    async fn a_connection_that_panics_is_no_longer_counted() {
        let authenticator = Authenticator::open(&Config::default()).expect("no files");
        let (metrics, journal) = (Arc::new(Metrics::new()), JournalSync::new(Duration::ZERO));
        let state =
            AppState::new(Arc::clone(&metrics), authenticator, None, None, None, journal, Cluster::default());
        let (all, of_addresses) = (Arc::new(Semaphore::new(1)), ConnectionLimiter::new(1));
        let permit = Arc::clone(&all).try_acquire_owned().expect("the first");
        let permit_of_address = of_addresses.try_acquire([127, 0, 0, 1].into()).expect("the first");
        let counted = Arc::clone(&metrics);
        let connection = async move {
            let text = String::from_utf8(counted.render()).expect("text");
            assert!(!text.contains("kvasir_http_connections 1\n"), "a bug");
        };
        let served = track_connection(state, (permit, permit_of_address), connection);
        tokio::spawn(served).await.expect_err("it panics while it is counted");
        let text = String::from_utf8(metrics.render()).expect("text");
        assert!(text.contains("kvasir_http_connections 0\n"), "{text}");
        assert!(all.try_acquire().is_ok() && of_addresses.try_acquire([127, 0, 0, 1].into()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_refused_while_the_service_drains_is_cut_off() {
        let (drained_after, refused_after) = (Duration::from_secs(1), Duration::from_secs(10));
        let (mut client, stream) = tokio::io::duplex(1 << 10);
        client.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.expect("writes");
        let never = service_fn(|_: Request<Incoming>| pending::<Result<Response, Infallible>>());
        let builder = connection_builder(limits::CONNECTION_MEMORY_BYTES);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), never).into_owned();
        let timer = IdleTimer::new();
        let _request = timer.track_request();
        let draining = watch::Sender::new(());
        let ended = until_ended(connection, &timer, draining.subscribe(), sleep(refused_after));
        let drain = async {
            sleep(drained_after).await;
            draining.send_replace(());
        };
        let begun = Instant::now();
        let both = async { tokio::join!(ended, drain) };
        let (ended, ()) = timeout(Duration::from_secs(3_600), both).await.expect("it ends");
        assert!(ended.is_err(), "its request never did");
        let took = begun.elapsed();
        let most = refused_after + limits::CREDENTIAL_LOOK_EVERY * 2;
        assert!(took >= refused_after && took <= most, "{took:?}");
    }
}
