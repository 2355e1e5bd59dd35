//! The server's side: an S3 server, the service over it, and the proxy in front of it.

use std::{net::SocketAddr, time::Duration};

use kvasir_replay::link::{BandwidthSeries, LinkOptions, ShapedLink};
use kvasir_server::Config;
use kvasir_tests::{
    s3::{Lacks, S3Server},
    service::Service,
};

/// The distance of a region, with properties that the kernel cannot simulate without netem: delay, jitter,
/// and an occasional lost packet.
const DELAY: Duration = Duration::from_millis(4);
const JITTER: Duration = Duration::from_millis(2);
const LOSS: f64 = 0.002;

/// Serves at `listen` until killed. Says `ready` when it does.
pub(crate) fn run(listen: &str) -> anyhow::Result<()> {
    let listen: SocketAddr = listen.parse()?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let s3 = S3Server::start(Lacks::default()).await;
        let cache = tempfile::tempdir()?;
        // The client names the address of the link.
        let open = |config: &mut Config| config.server.allow_unauthenticated = true;
        let service = Service::start_with(s3.config("network"), cache.path(), open).await;
        // Bandwidth is the kernel's affair.
        let unlimited = BandwidthSeries::constant(1e6).ok_or_else(|| anyhow::anyhow!("a series"))?;
        let options =
            LinkOptions { delay: DELAY, jitter: JITTER, loss: LOSS, ..LinkOptions::down(unlimited) };
        let _link = ShapedLink::start_at(listen, service.address, options).await?;
        println!("ready at {listen}");
        std::future::pending::<()>().await;
        Ok(())
    })
}
