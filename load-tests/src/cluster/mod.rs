//! The processes of a run: replicas over a store, and the proxy between them.

mod clock;
mod disk;
pub(crate) mod endpoints;
mod tenants;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use kvasir_store::{OpenStore, StoreConfig, observe::NoObserver};
use kvasir_tests::{
    process::{Process, Start},
    proxy::{FaultProxy, Weather},
    s3::S3Server,
    servers::RealServer,
};
use tempfile::TempDir;

use self::{clock::Clock, disk::SmallDisk, endpoints::Endpoints};
use crate::{
    arguments::CommonArguments,
    process::{ChildProcess, free_port},
    scenario::spec::ServiceSpec,
};

/// A replica, running or not.
pub(crate) struct Replica {
    pub(crate) address: SocketAddr,
    pub(crate) cache: PathBuf,
    pub(crate) process: Option<Process>,
    pub(crate) clock: Option<Clock>,
    pub(crate) disk: Option<SmallDisk>,
}

/// Replicas, the store they share, and the proxy on the way to it.
pub(crate) struct Cluster {
    pub(crate) replicas: Vec<Replica>,
    pub(crate) proxy: Option<FaultProxy>,
    /// The properties of the link to the store without faults.
    pub(crate) weather: Weather,
    /// Description of the store.
    pub(crate) store_name: String,
    pub(crate) tokens: Vec<String>,
    program: PathBuf,
    config: StoreConfig,
    flags: Vec<String>,
    _server: Option<ChildProcess>,
    pub(crate) directory: TempDir,
}

/// The tests' S3 server as a separate process, at `address`.
pub(crate) async fn s3_server(address: SocketAddr) -> Result<ChildProcess> {
    tokio::task::spawn_blocking(move || ChildProcess::s3_server(address)).await?
}

impl Cluster {
    /// Starts all of it and waits until every replica is ready.
    pub(crate) async fn start(common: &CommonArguments, spec: &ServiceSpec, clocks: bool) -> Result<Self> {
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
        let mut cluster = Self {
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
            let cache = cluster.directory.path().join(format!("replica-{nth}"));
            let disk = SmallDisk::mount_if(spec.disk_mib, &cache)?;
            let clock = if clocks { Some(Clock::new(cluster.directory.path(), nth)?) } else { None };
            cluster.replicas.push(Replica { address: free_port()?, cache, process: None, clock, disk });
            cluster.start_replica(nth).await?;
        }
        if let Some(proxy) = &cluster.proxy {
            proxy.weather(weather);
        }
        Ok(cluster)
    }

    /// Starts one of them, or restarts it at the same address and directory.
    pub(crate) async fn start_replica(&mut self, nth: usize) -> Result<()> {
        let program = self.program.to_string_lossy().into_owned();
        ensure!(self.program.exists(), "{program} does not exist; build it, or give its path with --kvasir");
        let replica = &self.replicas[nth];
        let mut start = Start::new(&program, &self.config, &replica.cache);
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

    /// The identity of the store in an index.
    pub(crate) fn store_identity(&self) -> Result<[u8; 32]> {
        Ok(OpenStore::open(&self.config, Arc::new(NoObserver))?.identity())
    }

    /// The addresses and credentials of requests.
    pub(crate) fn endpoints(&self) -> Endpoints {
        let urls = self.replicas.iter().map(|replica| format!("http://{}", replica.address));
        Endpoints { urls: urls.collect(), tokens: self.tokens.clone() }
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

/// A store by its name in a scenario, its process, and its description.
async fn store(name: &str, directory: &Path) -> Result<(StoreConfig, Option<ChildProcess>, String)> {
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
            let server = s3_server(address).await?;
            Ok((S3Server::config_at(address, "load"), Some(server), "the tests' S3 server".into()))
        }
        other => bail!("no store is called {other:?}; there are file and s3"),
    }
}
