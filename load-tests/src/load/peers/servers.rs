//! The servers, each with the same values in it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use kvasir_api::routes;
use object_store::{
    ObjectStoreExt as _,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path as StorePath,
    signer::Signer as _,
};
use tempfile::TempDir;

use super::{PeersArguments, client::Protocol};
use crate::{
    Common,
    objects::{Known, Pool, Shape},
    requests, run,
    scenario::ServiceSpec,
    world::{Owned, World, free_port, listening},
};

const KEY: &str = "load-test-key";
const SECRET: &str = "load-test-secret";
const BUCKET: &str = "kvasir-load";
/// Life of a presigned URL: longer than a comparison.
const URL_LIFE: Duration = Duration::from_secs(4 * 3600);

/// A server with values, ready to be asked.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) protocol: Protocol,
    /// The process that its family is charged to.
    pub(super) id: u32,
    pub(super) requests: Vec<Vec<u8>>,
    pub(super) values: Vec<Known>,
    _process: Option<Owned>,
    _world: Option<World>,
    _directory: Option<Arc<TempDir>>,
}

fn get(path: &str, address: SocketAddr) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").into_bytes()
}

/// All that can be had here; why the others cannot goes into `skipped`.
pub(super) async fn all(
    arguments: &PeersArguments,
    pool: &Pool,
    shape: Shape,
    count: usize,
    skipped: &mut BTreeMap<String, String>,
) -> Result<Vec<Target>> {
    let (kvasir, made) = kvasir(&arguments.common, pool, shape, count).await?;
    let directory = Arc::new(TempDir::new()?);
    let mut targets = vec![kvasir];
    let mut take = |name: &str, target: Result<Target>| match target {
        Ok(target) => targets.push(target),
        Err(error) => _ = skipped.insert(name.to_owned(), format!("{error:#}")),
    };
    take("nginx", nginx(&arguments.nginx, &directory, &made).await);
    take("minio", minio(arguments.minio.as_deref(), &directory, &made).await);
    take("redis", redis(&arguments.redis, &directory, &made).await);
    Ok(targets)
}

type Made = Vec<(Known, Vec<u8>)>;

async fn kvasir(common: &Common, pool: &Pool, shape: Shape, count: usize) -> Result<(Target, Made)> {
    let settings = vec!["hot.memory=1GiB".to_owned(), "hot.disk=0".to_owned()];
    let spec = ServiceSpec { store: "file".into(), settings, ..ServiceSpec::default() };
    let world = World::start(common, &spec, false).await?;
    let address = world.replicas[0].address;
    let http = requests::http_client()?;
    let tenant = run::tenant(Arc::new(Pool::clone(pool)), http, vec![address], None).await?;
    let (mut made, mut asked) = (Made::new(), Vec::new());
    for id in 0..count as u64 {
        for (known, object) in pool.context(tenant.model_id, tenant.root, id, shape)? {
            let stored = tenant.store(known.clone(), object.clone().into()).await;
            stored.map_err(|failure| anyhow::anyhow!("storing: {}", failure.cause))?;
            asked.push(get(
                &routes::chunk_object(&tenant.model_id, &known.seq_hash, &known.object_digest),
                address,
            ));
            made.push((known, object));
        }
    }
    let target = Target {
        name: "kvasir".into(),
        address,
        protocol: Protocol::Http,
        id: *world.ids().first().context("a replica")?,
        requests: asked,
        values: made.iter().map(|(known, _)| known.clone()).collect(),
        _process: None,
        _world: Some(world),
        _directory: None,
    };
    Ok((target, made))
}

/// A server of its own process.
async fn started(mut command: Command, address: SocketAddr) -> Result<Owned> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let process = Owned(command.spawn().with_context(|| format!("{name} cannot be started"))?);
    listening(address).await?;
    Ok(process)
}

fn target(
    name: &str,
    address: SocketAddr,
    protocol: Protocol,
    process: Owned,
    directory: &Arc<TempDir>,
    asked: Vec<Vec<u8>>,
    made: &[(Known, Vec<u8>)],
) -> Target {
    Target {
        name: name.to_owned(),
        address,
        protocol,
        id: process.0.id(),
        requests: asked,
        values: made.iter().map(|(known, _)| known.clone()).collect(),
        _process: Some(process),
        _world: None,
        _directory: Some(Arc::clone(directory)),
    }
}

/// Files with `sendfile`, one worker a core.
async fn nginx(binary: &Path, directory: &Arc<TempDir>, made: &[(Known, Vec<u8>)]) -> Result<Target> {
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
    Ok(target("nginx", address, Protocol::Http, process, directory, asked, made))
}

/// The one that `tests/servers/minio install` builds.
fn built_minio() -> Option<PathBuf> {
    let versions = std::fs::read_dir("target/servers/minio").ok()?;
    versions.flatten().map(|entry| entry.path().join("minio")).find(|path| path.is_file())
}

async fn minio(binary: Option<&Path>, directory: &Arc<TempDir>, made: &[(Known, Vec<u8>)]) -> Result<Target> {
    let built = binary.map(Path::to_owned).or_else(built_minio);
    let binary = built.context("no MinIO; `tests/servers/minio install` builds one")?;
    let (data, address) = (directory.path().join("minio"), free_port()?);
    std::fs::create_dir_all(data.join(BUCKET))?;
    let mut command = Command::new(binary);
    command.args(["server", "--quiet", "--address", &address.to_string()]).arg(&data);
    command.envs([
        ("MINIO_ROOT_USER", KEY),
        ("MINIO_ROOT_PASSWORD", SECRET),
        ("MINIO_BROWSER", "off"),
        ("MINIO_CI_CD", "1"),
    ]);
    let process = started(command, address).await?;
    let store = AmazonS3Builder::new()
        .with_bucket_name(BUCKET)
        .with_region("us-east-1")
        .with_endpoint(format!("http://{address}"))
        .with_virtual_hosted_style_request(false)
        .with_allow_http(true)
        .with_access_key_id(KEY)
        .with_secret_access_key(SECRET)
        .build()?;
    let mut asked = Vec::new();
    for (nth, (_, object)) in made.iter().enumerate() {
        let path = StorePath::from(format!("value-{nth}"));
        put(&store, &path, object).await?;
        let url = store.signed_url(reqwest::Method::GET, &path, URL_LIFE).await?;
        asked.push(get(&format!("{}?{}", url.path(), url.query().unwrap_or_default()), address));
    }
    Ok(target("minio", address, Protocol::Http, process, directory, asked, made))
}

/// The server listens before it takes writes.
async fn put(store: &AmazonS3, path: &StorePath, object: &[u8]) -> Result<()> {
    let mut last = None;
    for _ in 0..20 {
        match store.put(path, object.to_vec().into()).await {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    bail!("MinIO takes nothing: {last:?}")
}

async fn redis(binary: &Path, directory: &Arc<TempDir>, made: &[(Known, Vec<u8>)]) -> Result<Target> {
    let address = free_port()?;
    let mut command = Command::new(binary);
    command.args([
        "--port",
        &address.port().to_string(),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
    ]);
    command.arg("--dir").arg(directory.path());
    let process = started(command, address).await?;
    let mut socket = TcpStream::connect(address)?;
    let mut asked = Vec::new();
    for (nth, (_, object)) in made.iter().enumerate() {
        let key = format!("value-{nth}");
        write!(socket, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), object.len())?;
        socket.write_all(object)?;
        socket.write_all(b"\r\n")?;
        let mut answer = [0; 5];
        std::io::Read::read_exact(&mut socket, &mut answer)?;
        ensure!(&answer == b"+OK\r\n", "SET: {}", String::from_utf8_lossy(&answer));
        asked.push(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).into_bytes());
    }
    Ok(target("redis", address, Protocol::Redis, process, directory, asked, made))
}
