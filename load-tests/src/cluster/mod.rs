//! The processes of a run: replicas over a store, and the way between them.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use kvasir_storage::{
    observe::NoObserver,
    store::{OpenStore, StoreConfig},
};
use kvasir_tests::{
    process::{Process, Start},
    proxy::{FaultProxy, Weather},
    s3::S3Server,
    servers::RealServer,
};
use tempfile::TempDir;

use crate::{Common, clock::Clock, disk::SmallDisk, remote::Site, scenario::ServiceSpec, tenants};

/// A child process that ends with this value.
#[derive(Debug)]
pub(crate) struct Owned(pub(crate) Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // A master that is killed outright would leave its workers behind.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// A replica, running or not.
pub(crate) struct Replica {
    pub(crate) address: SocketAddr,
    pub(crate) cache: PathBuf,
    pub(crate) process: Option<Process>,
    pub(crate) clock: Option<Clock>,
    pub(crate) disk: Option<SmallDisk>,
}

/// Everything that runs.
pub(crate) struct World {
    pub(crate) replicas: Vec<Replica>,
    pub(crate) proxy: Option<FaultProxy>,
    /// What the way to the store is like without faults.
    pub(crate) weather: Weather,
    /// What the store is, in words.
    pub(crate) store_name: String,
    pub(crate) tokens: Vec<String>,
    program: PathBuf,
    config: StoreConfig,
    flags: Vec<String>,
    _server: Option<Owned>,
    pub(crate) directory: TempDir,
}

/// A free loopback port.
pub(crate) fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

/// Waits until something listens.
pub(crate) async fn listening(address: SocketAddr) -> Result<()> {
    let begun = Instant::now();
    while tokio::net::TcpStream::connect(address).await.is_err() {
        ensure!(begun.elapsed() < Duration::from_secs(30), "nothing listens at {address}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// The tests' own S3 server as a process of its own, at `address`.
pub(crate) async fn own_s3(address: SocketAddr) -> Result<Owned> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["s3-server", &address.to_string()]).stdin(Stdio::null());
    let server = Owned(command.spawn().context("starting the S3 server")?);
    listening(address).await?;
    Ok(server)
}

impl World {
    /// Starts all of it and waits until every replica is ready.
    pub(crate) async fn start(common: &Common, spec: &ServiceSpec, clocks: bool) -> Result<Self> {
        let directory = TempDir::new()?;
        let (mut config, server, store_name) = store(&spec.store, directory.path()).await?;
        let mut proxy = None;
        if let Some(endpoint) = config.endpoint.clone() {
            let upstream =
                endpoint.trim_start_matches("http://").parse().context("the endpoint's address")?;
            let made = FaultProxy::start(upstream, 1, 0).await;
            config.endpoint = Some(format!("http://{}", made.address));
            proxy = Some(made);
        }
        let bound = Some(spec.link_mbps).filter(|mbps| *mbps > 0.0);
        let weather = Weather {
            away: false,
            delay: Duration::from_secs_f64(spec.link_delay_ms / 1e3),
            bytes_per_second: bound.map(|mbps| (mbps * 1e6 / 8.0) as u64),
        };
        let mut flags: Vec<String> = spec.settings.iter().map(|setting| format!("--{setting}")).collect();
        flags.extend(common.settings.iter().map(|setting| format!("--{setting}")));
        flags.push("--log.filter=warn,kvasir_server=info".to_owned());
        let tokens = tenants::file(spec, directory.path(), &mut flags)?;
        let mut world = Self {
            replicas: Vec::new(),
            proxy,
            weather,
            store_name,
            tokens,
            program: common.kvasir.clone(),
            config,
            flags,
            _server: server,
            directory,
        };
        for nth in 0..spec.replicas.max(1) {
            let cache = world.directory.path().join(format!("replica-{nth}"));
            let disk = SmallDisk::mount_if(spec.disk_mib, &cache)?;
            let clock = if clocks { Some(Clock::new(world.directory.path(), nth)?) } else { None };
            world.replicas.push(Replica { address: free_port()?, cache, process: None, clock, disk });
            world.start_replica(nth).await?;
        }
        if let Some(proxy) = &world.proxy {
            proxy.weather(weather);
        }
        Ok(world)
    }

    /// Starts one of them, or starts it again where it was.
    pub(crate) async fn start_replica(&mut self, nth: usize) -> Result<()> {
        let program = self.program.to_string_lossy().into_owned();
        ensure!(self.program.exists(), "{program} is not there: build it, or name it with --kvasir");
        let replica = &self.replicas[nth];
        let mut start = Start::new("serve", &self.config, &replica.cache);
        start.under = vec![program];
        start.listen = replica.address.to_string();
        start.flags = self.flags.clone();
        if let Some(clock) = &replica.clock {
            start.env.extend(clock.env());
        }
        let process = start.start().await;
        process.ready().await;
        self.replicas[nth].process = Some(process);
        Ok(())
    }

    /// What the store is called in an index.
    pub(crate) fn store_identity(&self) -> Result<[u8; 32]> {
        Ok(OpenStore::open(&self.config, Arc::new(NoObserver))?.identity)
    }

    /// Where requests go.
    pub(crate) fn site(&self) -> Site {
        let urls = self.replicas.iter().map(|replica| format!("http://{}", replica.address));
        Site { urls: urls.collect(), tokens: self.tokens.clone() }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, nth: usize) {
        if let Some(process) = self.replicas[nth].process.take() {
            process.kill();
        }
    }

    /// Process ids of the replicas that run.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.replicas.iter().filter_map(|replica| replica.process.as_ref()).map(Process::id).collect()
    }
}

/// A store by its name in a scenario, the process behind it, and what it is.
async fn store(name: &str, directory: &Path) -> Result<(StoreConfig, Option<Owned>, String)> {
    match name {
        "file" => {
            let url = format!("file://{}/store", directory.display()).parse()?;
            Ok((StoreConfig::new(url), None, "local file system".into()))
        }
        "s3" => {
            let real = RealServer::named_in_environment().into_iter().next();
            if let Some(server) = real {
                let unique = directory.file_name().unwrap_or_default().to_string_lossy();
                let prefix = format!("load-{}-{}", std::process::id(), unique.trim_start_matches('.'));
                return Ok((server.config(&prefix), None, server.name));
            }
            let address = free_port()?;
            let server = own_s3(address).await?;
            Ok((S3Server::config_at(address, "load"), Some(server), "the tests' S3 server".into()))
        }
        other => bail!("no store is called {other:?}; there are file and s3"),
    }
}
