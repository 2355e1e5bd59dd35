//! Replicas that run over one object store.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use kvasir_store::{StoreConfig, observe::StoreOp};
use kvasir_tests::{
    process::{Process, Start},
    s3::S3Server,
};
use tempfile::TempDir;

use super::{
    ScaleArguments,
    clients::{ReplicaClients, Spreading},
    network::BridgedNetwork,
};
use crate::{
    cluster,
    process::{ChildProcess, minio},
};

/// Replicas in namespaces, and the object store.
pub(super) struct ReplicaGroup {
    processes: Vec<Option<Process>>,
    pub(super) clients: Arc<ReplicaClients>,
    program: String,
    flags: Vec<String>,
    spreading: Spreading,
    store: StoreConfig,
    directory: TempDir,
    network: BridgedNetwork,
    _server: ChildProcess,
}

impl ReplicaGroup {
    /// Starts a replica in each namespace, with a hot tier of `memory` and `disk` bytes each. By routes, replicas and clients know the list of
    /// members; by chance, nobody does, as behind a plain load balancer.
    pub(super) async fn start(
        arguments: &ScaleArguments,
        network: BridgedNetwork,
        spreading: Spreading,
        memory: u64,
        disk: u64,
    ) -> Result<Self> {
        let (common, address, directory) =
            (&arguments.common, BridgedNetwork::store_address(), TempDir::new()?);
        let (server, store) = match &arguments.minio {
            Some(binary) => (minio::start(binary, directory.path(), address).await?, minio::config(address)?),
            None => (cluster::s3_server(address).await?, S3Server::config_at(address, "scale")),
        };
        let program = std::path::absolute(&common.kvasir)?;
        ensure!(program.exists(), "{} does not exist", program.display());
        let mut flags = vec![
            "--server.allow_unauthenticated=true".to_owned(),
            format!("--hot.memory={memory}"),
            format!("--hot.disk={disk}"),
        ];
        flags.extend(common.settings.iter().map(|setting| format!("--{setting}")));
        let replicas = network.replicas();
        let urls: Vec<String> = (0..replicas).map(|nth| format!("http://{}", network.address(nth))).collect();
        let mut group = Self {
            processes: Vec::new(),
            clients: Arc::new(ReplicaClients::new(spreading, urls)?),
            program: program.to_string_lossy().into_owned(),
            flags,
            spreading,
            store,
            directory,
            network,
            _server: server,
        };
        for nth in 0..replicas {
            let process = group.start_one(nth).await;
            group.processes.push(Some(process));
        }
        group.clients.register().await?;
        Ok(group)
    }

    async fn start_one(&self, nth: usize) -> Process {
        let cache: PathBuf = self.directory.path().join(nth.to_string());
        let mut start = Start::new(&self.program, &self.store, &cache);
        start.under = self.network.enter(nth);
        start.listen = self.network.address(nth).to_string();
        start.flags.clone_from(&self.flags);
        if self.spreading == Spreading::Routes {
            let urls = self.clients.urls();
            start.flags.push(format!("--cluster.members={}", urls.join(",")));
            start.flags.push(format!("--cluster.advertise={}", urls[nth]));
        }
        let process = start.start().await;
        process.ready().await;
        process
    }

    /// How many replicas there are.
    pub(super) fn replicas(&self) -> usize {
        self.network.replicas()
    }

    /// Process ids of the replicas.
    pub(super) fn ids(&self) -> Vec<u32> {
        self.processes.iter().flatten().map(Process::id).collect()
    }

    /// SIGTERM, until the process has ended.
    pub(super) async fn stop(&mut self, nth: usize) -> Result<()> {
        let mut process = self.processes[nth].take().context("it runs")?;
        process.terminate();
        let status = process.wait().await;
        ensure!(status.success(), "a replica that was asked to stop ended with {status}");
        Ok(())
    }

    /// A new process with the address and directory of one that has ended.
    pub(super) async fn start_again(&mut self, nth: usize) {
        self.processes[nth] = Some(self.start_one(nth).await);
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self, nth: usize) {
        if let Some(process) = self.processes[nth].take() {
            process.kill();
        }
    }

    /// Requests of all replicas to the store so far, by their kind.
    pub(super) async fn store_requests(&self) -> BTreeMap<String, f64> {
        let mut requests = BTreeMap::new();
        for op in StoreOp::ALL {
            let label = format!("op=\"{}\"", op.as_str());
            let of_each = self.metric("kvasir_store_requests_total", &[label.as_str()]).await;
            requests.insert(op.as_str().to_owned(), of_each.iter().sum());
        }
        requests
    }

    /// The sum of a metric's samples that have all of `labels`, of each replica that runs.
    pub(super) async fn metric(&self, name: &str, labels: &[&str]) -> Vec<f64> {
        let mut sums = Vec::new();
        for process in self.processes.iter().flatten() {
            let metrics = process.metrics().await;
            let samples = metrics.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
            let wanted = samples.filter(|(set, _)| {
                (set.is_empty() || set.starts_with('{')) && labels.iter().all(|label| set.contains(label))
            });
            sums.push(wanted.filter_map(|(_, value)| value.parse::<f64>().ok()).sum());
        }
        sums
    }
}
