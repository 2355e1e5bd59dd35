//! Child processes of a measurement: started, waited for until they listen, ended with their handle.

pub(crate) mod minio;
pub(crate) mod nginx;
pub(crate) mod usage;

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

/// How long a process may take until it listens, and the pause between two checks.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
const LISTEN_PAUSE: Duration = Duration::from_millis(20);

/// A child process that listens at an address. It ends with this value.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl ChildProcess {
    /// Starts a process and blocks until it listens at `address`.
    pub(crate) fn start_blocking(mut command: Command, address: SocketAddr) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let process = Self { child, address };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            ensure!(begun.elapsed() < LISTEN_TIMEOUT, "{name} does not listen at {address}");
            pause(LISTEN_PAUSE);
        }
        Ok(process)
    }

    /// Starts a process and waits until it listens at `address`.
    pub(crate) async fn start(command: Command, address: SocketAddr) -> Result<Self> {
        tokio::task::spawn_blocking(move || Self::start_blocking(command, address)).await?
    }

    /// The tests' S3 server as a separate process, by the hidden subcommand that serves it.
    pub(crate) fn s3_server(address: SocketAddr) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("s3-server").arg(address.to_string());
        Self::start_blocking(command, address).context("starting the S3 server")
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // SIGTERM: a master that is killed outright would leave its workers running.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// A free loopback port.
pub(crate) fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

/// Blocks this thread for a while.
#[allow(clippy::disallowed_methods, reason = "a measurement takes the time it is told to")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
