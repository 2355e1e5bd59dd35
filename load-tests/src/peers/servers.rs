//! The servers, each with the same values in it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use kvasir_api::{MEDIA_CHUNK, routes};
use kvasir_types::{ModelId, RootHash};
use tempfile::TempDir;

use super::{
    PeersArguments,
    client::{Server, Write},
    lmcache, minio,
    protocol::Protocol,
    redis,
};
use crate::{
    Common,
    objects::{Known, Pool, Shape},
    requests, run,
    scenario::ServiceSpec,
    world::{Owned, World, free_port, listening},
};

/// How the nth write of a round is sent.
pub(super) type Writes = Box<dyn Fn(usize, &Known, &Bytes) -> Write + Send + Sync>;
/// Values that were made, with what they are.
pub(super) type Made = Vec<(Known, Bytes)>;

/// A server with values, ready to be asked.
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) server: Server,
    /// Requests for the values.
    pub(super) reads: Vec<(Vec<u8>, Known)>,
    /// Absent where it is not written to.
    pub(super) writes: Option<Writes>,
    _kept: Kept,
}

/// What ends with a target.
enum Kept {
    World { _world: Box<World> },
    Process { _process: Owned, _directory: Arc<TempDir> },
}

/// Makes values, the same for all servers.
pub(super) struct Maker {
    pub(super) pool: Arc<Pool>,
    model_id: ModelId,
    root: RootHash,
    shape: Shape,
}

impl Maker {
    /// Values with the numbers `from ..`.
    pub(super) fn make(&self, from: u64, count: usize) -> Result<Made> {
        let one = |id| self.pool.context(self.model_id, self.root, id, self.shape);
        let made: Vec<_> = (from..from + count as u64).map(one).collect::<Result<_>>()?;
        Ok(made.into_iter().flatten().map(|(known, object)| (known, Bytes::from(object))).collect())
    }
}

pub(super) fn get(path: &str, address: SocketAddr) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").into_bytes()
}

pub(super) fn put(path: &str, address: SocketAddr, media: &str, value: &Bytes) -> Write {
    let length = value.len();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n\r\n"
    );
    Write { before: head.into_bytes(), value: value.clone(), behind: Vec::new() }
}

/// All that can be had here; why the others cannot goes into `skipped`.
pub(super) async fn all(
    arguments: &PeersArguments,
    pool: &Arc<Pool>,
    shape: Shape,
    skipped: &mut BTreeMap<String, String>,
) -> Result<(Vec<Target>, Maker)> {
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
    common: &Common,
    pool: &Arc<Pool>,
    shape: Shape,
    count: usize,
) -> Result<(Target, Maker, Made)> {
    let settings = vec!["hot.memory=1GiB".to_owned(), "hot.disk=0".to_owned()];
    let spec = ServiceSpec { store: "file".into(), settings, ..ServiceSpec::default() };
    let world = World::start(common, &spec, false).await?;
    let address = world.replicas[0].address;
    let tenant = run::tenant(Arc::clone(pool), requests::http_client()?, world.site().urls, None).await?;
    let (model_id, root) = (tenant.model_id, tenant.root);
    let maker = Maker { pool: Arc::clone(pool), model_id, root, shape };
    let made = maker.make(0, count)?;
    let mut reads = Vec::new();
    for (known, object) in &made {
        let stored = tenant.store(known.clone(), object.clone()).await;
        stored.map_err(|failure| anyhow::anyhow!("storing: {}", failure.cause))?;
        let path = routes::chunk_object(&model_id, &known.seq_hash, &known.object_digest);
        reads.push((get(&path, address), known.clone()));
    }
    let id = *world.ids().first().context("a replica")?;
    let target = Target {
        name: "kvasir",
        server: Server { address, protocol: Protocol::Http, id },
        reads,
        writes: Some(Box::new(move |_, known, object| {
            put(&routes::chunk(&model_id, &known.seq_hash), address, MEDIA_CHUNK, object)
        })),
        _kept: Kept::World { _world: Box::new(world) },
    };
    Ok((target, maker, made))
}

/// A server of its own process.
pub(super) async fn started(mut command: Command, address: SocketAddr) -> Result<Owned> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let process = Owned(command.spawn().with_context(|| format!("{name} cannot be started"))?);
    listening(address).await.with_context(|| name)?;
    Ok(process)
}

/// A target of a process; `asked` are requests for the values, in order.
pub(super) fn target(
    name: &'static str,
    (address, protocol): (SocketAddr, Protocol),
    (process, directory): (Owned, &Arc<TempDir>),
    asked: Vec<Vec<u8>>,
    made: &Made,
    writes: Option<Writes>,
) -> Target {
    let known = made.iter().map(|(known, _)| known.clone());
    Target {
        name,
        server: Server { address, protocol, id: process.0.id() },
        reads: asked.into_iter().zip(known).collect(),
        writes,
        _kept: Kept::Process { _process: process, _directory: Arc::clone(directory) },
    }
}

/// Files with `sendfile`, one worker a core.
async fn nginx(binary: &Path, directory: &Arc<TempDir>, made: &Made) -> Result<Target> {
    ensure!(binary.exists(), "{} is not there; apt-get install nginx-light", binary.display());
    let (root, address) = (directory.path().join("nginx"), free_port()?);
    std::fs::create_dir_all(&root)?;
    for (nth, (_, object)) in made.iter().enumerate() {
        std::fs::write(root.join(format!("value-{nth}")), object)?;
    }
    let folder = root.display();
    let mut text = format!(
        "daemon off; worker_processes auto; pid {folder}/pid; error_log stderr error; events {{}}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000;\n"
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(text, "{kind}_temp_path {folder}/{kind};")?;
    }
    writeln!(text, "server {{ listen {address}; root {folder}; }} }}")?;
    std::fs::File::create(root.join("conf"))?.write_all(text.as_bytes())?;
    let mut command = Command::new(binary);
    command.arg("-c").arg(root.join("conf")).arg("-p").arg(&root).args(["-e", "stderr"]);
    let process = started(command, address).await?;
    let asked = (0..made.len()).map(|nth| get(&format!("/value-{nth}"), address)).collect();
    Ok(target("nginx", (address, Protocol::Http), (process, directory), asked, made, None))
}
