//! The servers, each with the same values in it.

use std::{collections::BTreeMap, path::Path, sync::Arc};

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
};
use crate::{
    arguments::CommonArguments,
    cluster::Cluster,
    http,
    process::{free_port, nginx as nginx_command},
    scenario::spec::ServiceSpec,
    traffic::{
        objects::{ContextShape, Pool},
        tenant::{Tenant, http_client},
    },
};

/// Memory of the service's hot tier.
pub(super) const HOT_BYTES: usize = 1 << 30;

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
}

/// All servers available on this machine; `skipped` gets the reason for the others.
pub(super) async fn all(
    arguments: &PeersArguments,
    pool: &Arc<Pool>,
    shape: ContextShape,
    skipped: &mut BTreeMap<String, String>,
) -> Result<(Vec<Target>, ValueGenerator)> {
    let (kvasir, maker, made) = kvasir(&arguments.common, pool, shape, arguments.values).await?;
    let directory = Arc::new(TempDir::new()?);
    let mut targets = vec![kvasir];
    let mut take = |name: &str, target: Result<Target>| match target {
        Ok(target) => targets.push(target),
        Err(error) => _ = skipped.insert(name.to_owned(), format!("{error:#}")),
    };
    take("nginx", nginx(&arguments.nginx, &directory, &made).await);
    take("minio", minio::start(arguments, &directory, &made, arguments.writes_of(shape.bytes)).await);
    take("redis", redis::start(&arguments.redis, &directory, &made).await);
    take("lmcache", lmcache::start(&arguments.lmcache, &directory, &made).await);
    Ok((targets, maker))
}

async fn kvasir(
    common: &CommonArguments,
    pool: &Arc<Pool>,
    shape: ContextShape,
    count: usize,
) -> Result<(Target, ValueGenerator, SampleValues)> {
    let settings = vec![format!("hot.memory={HOT_BYTES}"), "hot.disk=0".to_owned()];
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
        let path = routes::chunk_object(&model_id, &known.seq_hash, &known.object_digest);
        reads.push((http::get(&path, address, &[]), known.clone()));
    }
    let id = *cluster.ids().first().context("a replica")?;
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
    Ok((target, maker, made))
}

/// Files with `sendfile`, one worker a core.
async fn nginx(binary: &Path, directory: &Arc<TempDir>, made: &SampleValues) -> Result<Target> {
    ensure!(binary.exists(), "{} does not exist; run apt-get install nginx-light", binary.display());
    let (root, address) = (directory.path().join("nginx"), free_port()?);
    std::fs::create_dir_all(&root)?;
    for (nth, (_, object)) in made.iter().enumerate() {
        std::fs::write(root.join(format!("value-{nth}")), object)?;
    }
    let command = nginx_command::command(binary, &root, address, "auto")?;
    let process = started(command, address).await?;
    let asked = (0..made.len()).map(|nth| http::get(&format!("/value-{nth}"), address, &[])).collect();
    Ok(target("nginx", (address, Protocol::Http), (process, directory), asked, made, None))
}
