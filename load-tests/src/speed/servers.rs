//! The processes that are measured.

use std::{
    io::Write as _,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use kvasir_storage::store::StoreConfig;
use kvasir_tests::s3::{Lacks, S3Server};
use tokio::runtime::Runtime;

use crate::Common;

/// A process that ends with this value.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // nginx ends its workers on SIGTERM only; the others write out what they have.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

fn started(mut command: Command, address: SocketAddr) -> Result<Process> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdout(Stdio::null()).spawn().with_context(|| format!("starting {name}"))?;
    let process = Process { child, address };
    let start = Instant::now();
    while TcpStream::connect(address).is_err() {
        if start.elapsed() > Duration::from_secs(30) {
            bail!("{name} does not listen");
        }
        crate::pause(0.02);
    }
    Ok(process)
}

/// Bytes that a process has in memory.
pub(crate) fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes << 10)
}

/// nginx over a directory, with `sendfile` and two workers.
pub(crate) fn nginx(binary: &Path, directory: &Path) -> Result<Process> {
    let address = free_port()?;
    let root = directory.display();
    let text = format!(
        "daemon off; worker_processes 2; pid {root}/nginx.pid; error_log stderr error;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000;\n\
           client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;\n\
           uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n\
           server {{ listen {address}; root {root}; }} }}\n"
    );
    let config = directory.join("nginx.conf");
    std::fs::File::create(&config)?.write_all(text.as_bytes())?;
    let mut command = Command::new(binary);
    command.arg("-c").arg(&config).arg("-p").arg(directory).arg("-e").arg("stderr");
    started(command, address)
}

/// The store that the service and the direct writer use.
pub(crate) struct Store {
    pub(crate) config: StoreConfig,
    _server: Option<Process>,
}

/// The S3 store of the command line, or one of our own.
pub(crate) fn s3_store(common: &Common) -> Result<Store> {
    if let Some(url) = &common.s3 {
        let layers = kvasir_tests::process_layers().with_flags([("store.url", url.as_str())]);
        let config = layers.load().map_err(|error| anyhow::anyhow!("{error}"))?;
        return Ok(Store { config: config.store, _server: None });
    }
    let address = free_port()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("s3-server").arg(address.to_string());
    let server = started(command, address)?;
    Ok(Store { config: S3Server::config_at(address, "speed"), _server: Some(server) })
}

/// The body of the hidden command.
pub(crate) fn serve_s3(runtime: &Runtime, address: SocketAddr) -> Result<()> {
    runtime.block_on(async {
        let _server = S3Server::start_at(address, Lacks::default()).await;
        std::future::pending::<()>().await;
    });
    Ok(())
}

/// A directory as a store.
pub(crate) fn file_store(directory: &Path) -> Result<Store> {
    let url = url::Url::from_file_path(directory.join("store")).map_err(|()| anyhow::anyhow!("a path"))?;
    Ok(Store { config: StoreConfig::new(url), _server: None })
}

/// The store that `--store` names.
pub(crate) fn store(common: &Common, directory: &Path) -> Result<Store> {
    if common.store == "s3" { s3_store(common) } else { file_store(directory) }
}

/// Tells a command of the service which store it is over.
pub(crate) fn over(command: &mut Command, store: &StoreConfig) {
    command.args(["--store.url", store.url.as_str()]);
    if let Some(endpoint) = &store.endpoint {
        command.args(["--store.endpoint", endpoint]);
    }
    let secret = store.secret_access_key.as_ref().map(|secret| secret.expose());
    let variables = [
        ("AWS_REGION", store.region.as_deref()),
        ("AWS_ACCESS_KEY_ID", store.access_key_id.as_deref()),
        ("AWS_SECRET_ACCESS_KEY", secret),
    ];
    for (name, value) in variables.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
}

/// The service over a store, with everything else under `directory`.
pub(crate) fn kvasir(common: &Common, store: &StoreConfig, directory: &Path) -> Result<Process> {
    let address = free_port()?;
    let mut command = Command::new(&common.kvasir);
    command.arg("serve").args(["--listen", &address.to_string()]);
    over(&mut command, store);
    command.arg("--cache.directory").arg(directory.join("cache")).args(["--log.filter", "warn"]);
    for setting in &common.settings {
        let (key, value) = setting.split_once('=').context("a setting as section.key=value")?;
        command.args([&format!("--{key}"), value]);
    }
    started(command, address)
}
