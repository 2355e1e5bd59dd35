//! The servers, each with the same values in it.

use std::{collections::BTreeMap, net::SocketAddr, path::Path, process::Command, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use kvasir_api::{HEADER_OBJECT_DIGEST, MEDIA_CHUNK, routes};
use kvasir_types::{ModelId, RootHash};
use tempfile::TempDir;

use super::{
    arguments::PeersArguments,
    lmcache, minio,
    protocol::Protocol,
    redis,
    target::{PeerServer, SampleValues, ServerHandle, Target, put, started, target},
    tls,
};
use crate::{
    arguments::CommonArguments,
    cluster::Cluster,
    http,
    process::{free_port, nginx as nginx_command},
    scenario::spec::ServiceSpec,
    traffic::{
        objects::{ContextShape, Pool, SyntheticObject},
        tenant::{Tenant, http_client},
    },
};

/// Memory of the service's hot tier, or its disk where the tier has no memory.
pub(super) const HOT_BYTES: usize = 1 << 30;

fn hot_tier(memory: usize, disk: usize) -> [String; 2] {
    [format!("hot.memory={memory}"), format!("hot.disk={disk}")]
}

/// Makes values, the same for all servers.
pub(super) struct ValueGenerator {
    pub(super) pool: Arc<Pool>,
    model_id: ModelId,
    root: RootHash,
    shape: ContextShape,
}

impl ValueGenerator {
    /// Values with the numbers `from ..`.
    pub(super) fn make(&self, from: u64, count: usize) -> Result<SampleValues> {
        let one = |id| self.pool.context(self.model_id, self.root, id, self.shape);
        let made: Vec<_> = (from..from + count as u64).map(one).collect::<Result<_>>()?;
        Ok(made.into_iter().flatten().map(|(known, object)| (known, Bytes::from(object))).collect())
    }

    /// A request to the service for a value.
    fn read(&self, known: &SyntheticObject, address: SocketAddr) -> Vec<u8> {
        let path = routes::chunk_object(&self.model_id, &known.seq_hash, &known.object_digest);
        http::get(&path, address, &[])
    }
}

/// All servers available on this machine; `skipped` gets the reason for the others.
pub(super) async fn all(
    arguments: &PeersArguments,
    pool: &Arc<Pool>,
    shape: ContextShape,
    skipped: &mut BTreeMap<String, String>,
) -> Result<(Vec<Target>, ValueGenerator)> {
    let common = &arguments.common;
    let (kvasir, store, maker, made) = kvasir(common, pool, shape, arguments.values).await?;
    let directory = Arc::new(TempDir::new()?);
    let mut targets = vec![kvasir];
    let mut take = |name: &str, target: Result<Target>| match target {
        Ok(target) => targets.push(target),
        Err(error) => _ = skipped.insert(name.to_owned(), format!("{error:#}")),
    };
    let plain = ("nginx", Protocol::Http);
    take(plain.0, nginx(plain, &arguments.nginx, "", &directory, &made).await);
    take("minio", minio::start(arguments, &directory, &made, arguments.writes_of(shape.bytes)).await);
    take("redis", redis::start(&arguments.redis, &directory, &made).await);
    take("lmcache", lmcache::start(&arguments.lmcache, &directory, &made).await);
    let (from_disk, disk) = (("kvasir from disk", Protocol::Http), hot_tier(0, HOT_BYTES));
    take(from_disk.0, again(from_disk, common, &disk, &store, &directory, (&maker, &made)).await);
    let [certificate, key] = tls::files(directory.path())?;
    let files = [format!("tls.certificate_file={certificate}"), format!("tls.key_file={key}")];
    let (over_tls, memory) = (("kvasir over TLS", Protocol::Https), [hot_tier(HOT_BYTES, 0), files].concat());
    take(over_tls.0, again(over_tls, common, &memory, &store, &directory, (&maker, &made)).await);
    let (over_tls, ssl) = (
        ("nginx over TLS", Protocol::Https),
        format!(" ssl; ssl_certificate {certificate}; ssl_certificate_key {key}"),
    );
    take(over_tls.0, nginx(over_tls, &arguments.nginx, &ssl, &directory, &made).await);
    Ok((targets, maker))
}

/// The service with the values, and the URL of its store.
async fn kvasir(
    common: &CommonArguments,
    pool: &Arc<Pool>,
    shape: ContextShape,
    count: usize,
) -> Result<(Target, String, ValueGenerator, SampleValues)> {
    let settings = hot_tier(HOT_BYTES, 0).to_vec();
    let spec = ServiceSpec { store: "file".into(), settings, ..ServiceSpec::default() };
    let cluster = Cluster::start(common, &spec, false).await?;
    let address = cluster.replicas[0].address;
    let tenant = Tenant::register(Arc::clone(pool), http_client()?, cluster.endpoints().urls, None).await?;
    let (model_id, root) = (tenant.model_id, tenant.root);
    let maker = ValueGenerator { pool: Arc::clone(pool), model_id, root, shape };
    let made = maker.make(0, count)?;
    let mut reads = Vec::new();
    for (known, object) in &made {
        let stored = tenant.store(known.clone(), object.clone()).await;
        stored.map_err(|failure| anyhow::anyhow!("storing: {}", failure.cause))?;
        reads.push((maker.read(known, address), known.clone()));
    }
    let id = *cluster.ids().first().context("a replica")?;
    // That of `Cluster`, whose store is "file".
    let store = format!("file://{}/store", cluster.directory.path().display());
    let target = Target {
        name: "kvasir",
        server: PeerServer { address, protocol: Protocol::Http, id },
        reads,
        writes: Some(Box::new(move |_, known, object| {
            let digest = format!("{HEADER_OBJECT_DIGEST}: {}", known.object_digest);
            put(&routes::chunk(&model_id, &known.seq_hash), address, MEDIA_CHUNK, object, &[digest])
        })),
        _handle: ServerHandle::Cluster { _world: Box::new(cluster) },
    };
    Ok((target, store, maker, made))
}

/// Another process of the service over the same store, with other settings.
async fn again(
    (name, protocol): (&'static str, Protocol),
    common: &CommonArguments,
    settings: &[String],
    store: &str,
    directory: &Arc<TempDir>,
    (maker, made): (&ValueGenerator, &SampleValues),
) -> Result<Target> {
    let address = free_port()?;
    let mut command = Command::new(&common.kvasir);
    command.args(["serve", "--listen", &address.to_string(), "--store.url", store, "--log.filter", "warn"]);
    command.arg("--cache.directory").arg(directory.path().join(name));
    command.args(settings.iter().chain(&common.settings).map(|setting| format!("--{setting}")));
    let process = started(command, address).await?;
    let asked = made.iter().map(|(known, _)| maker.read(known, address)).collect();
    Ok(target(name, (address, protocol), (process, directory), asked, made, None))
}

/// Files with `sendfile`, one worker a core. `ssl`: what follows its address.
async fn nginx(
    (name, protocol): (&'static str, Protocol),
    binary: &Path,
    ssl: &str,
    directory: &Arc<TempDir>,
    made: &SampleValues,
) -> Result<Target> {
    ensure!(binary.exists(), "{} does not exist; run apt-get install nginx-light", binary.display());
    let (root, address) = (directory.path().join(name.replace(' ', "-")), free_port()?);
    std::fs::create_dir_all(&root)?;
    for (nth, (_, object)) in made.iter().enumerate() {
        std::fs::write(root.join(format!("value-{nth}")), object)?;
    }
    let command = nginx_command::command(binary, &root, &format!("{address}{ssl}"), "auto")?;
    let process = started(command, address).await?;
    let asked = (0..made.len()).map(|nth| http::get(&format!("/value-{nth}"), address, &[])).collect();
    Ok(target(name, (address, protocol), (process, directory), asked, made, None))
}
