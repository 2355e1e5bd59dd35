//! The real server in a separate process, which tests can kill, stop, and restart.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader},
    net::SocketAddr,
    ops::Deref,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use kvasir_store::StoreConfig;

use crate::service::Api;

/// Maximum time of any step before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lines of the log that are in the report of a failure.
const LOG_LINES: usize = 200;
/// Lines of the log that are kept: what a request logged is among them when its answer is judged.
const LOG_LINES_KEPT: usize = 20 * LOG_LINES;

/// A running process. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    api: Api,
    child: Child,
    log: Arc<Log>,
    patience: Duration,
}

/// The end of a log, which stays after its process.
#[derive(Debug, Default)]
pub struct Log(Mutex<VecDeque<String>>);

impl Log {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().expect("not poisoned");
        lines.push_back(line);
        if lines.len() > LOG_LINES_KEPT {
            lines.pop_front();
        }
    }

    /// The last lines.
    pub fn text(&self) -> String {
        let lines = self.0.lock().expect("not poisoned");
        let last = lines.iter().skip(lines.len().saturating_sub(LOG_LINES));
        last.map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Whether one line has both texts.
    pub fn has(&self, one: &str, other: &str) -> bool {
        let lines = self.0.lock().expect("not poisoned");
        lines.iter().any(|line| line.contains(one) && line.contains(other))
    }
}

/// How to start one.
#[derive(Debug)]
pub struct Start<'a> {
    /// The server's program.
    pub binary: &'a str,
    /// The store.
    pub store: &'a StoreConfig,
    /// Directory of its index and spool.
    pub cache: &'a Path,
    /// Its address; by default a free loopback port.
    pub listen: String,
    /// Further flags, as `--gc.grace=0s`.
    pub flags: Vec<String>,
    /// Further variables.
    pub env: Vec<(String, String)>,
    /// A program that becomes the server, with its arguments; for namespaces.
    pub under: Vec<String>,
    /// Maximum time of any step before a test fails.
    pub patience: Duration,
}

impl<'a> Start<'a> {
    /// With nothing but the necessary.
    pub fn new(binary: &'a str, store: &'a StoreConfig, cache: &'a Path) -> Self {
        let (listen, patience) = ("127.0.0.1:0".to_owned(), PATIENCE);
        let (flags, env, under) = (Vec::new(), Vec::new(), Vec::new());
        Self { binary, store, cache, listen, flags, env, under, patience }
    }

    /// Adds flags.
    #[must_use]
    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|&flag| flag.to_owned()));
        self
    }

    /// Adds a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self) -> Command {
        let mut words = self.under.clone();
        words.push(self.binary.to_owned());
        let mut command = Command::new(&words[0]);
        // The tests' own environment must not configure the service.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("KVASIR_") || name.starts_with("AWS_") {
                command.env_remove(name);
            }
        }
        let store = self.store;
        command.args(&words[1..]).args(["serve", "--listen", &self.listen, "--log.format", "json"]);
        command.args(["--store.url", store.url.as_str()]);
        command.arg("--cache.directory").arg(self.cache);
        if let Some(endpoint) = &store.endpoint {
            command.args(["--store.endpoint", endpoint, "--store.region", "us-east-1"]);
        }
        if let (Some(key), Some(secret)) = (&store.access_key_id, &store.secret_access_key) {
            command.env("AWS_ACCESS_KEY_ID", key).env("AWS_SECRET_ACCESS_KEY", secret.expose());
        }
        command.args(&self.flags).envs(self.env.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts it, and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    pub async fn start(self) -> Process {
        let mut child = self.command().spawn().expect("the server starts");
        let (log, patience) = (Arc::new(Log::default()), self.patience);
        let (sender, address) = mpsc::channel();
        let (stderr, lines) = (child.stderr.take().expect("piped"), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some(address) = address_in(&line, "listening") {
                    let _ = sender.send(address);
                }
                lines.push(line);
            }
        });
        let address = tokio::task::spawn_blocking(move || address.recv_timeout(patience));
        match address.await.expect("no panic") {
            Ok(address) => Process { api: Api::at(address), child, log, patience },
            Err(_) => {
                let _ = child.kill();
                panic!("the server does not listen:\n{}", log.text());
            }
        }
    }
}

fn address_in(line: &str, message: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let fields = &line["fields"];
    (fields["message"] == message).then(|| fields["address"].as_str()?.parse().ok())?
}

impl Process {
    /// Its address and requests to it.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Its log, as it grows.
    pub fn log_lines(&self) -> Arc<Log> {
        Arc::clone(&self.log)
    }

    /// Its address for S3 clients, shortly after its start.
    pub async fn s3_address(&self) -> SocketAddr {
        const SAYS: &str = "listening for S3 clients";
        self.says(SAYS).await;
        self.log().lines().find_map(|line| address_in(line, SAYS)).expect("it says where")
    }

    /// Waits until its log has this text: a pipe may deliver it later than answers arrive.
    pub async fn says(&self, what: &str) {
        let begun = Instant::now();
        while !self.log().contains(what) {
            assert!(begun.elapsed() < self.patience, "{what} is not in its log:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not come.
    pub async fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            assert!(begun.elapsed() < self.patience, "it does not end:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until it says that it is ready.
    ///
    /// # Panics
    /// When it never is.
    pub async fn ready(&self) {
        let begun = Instant::now();
        while self.get("/readyz", &[]).await.status() != 200 {
            assert!(begun.elapsed() < self.patience, "it is not ready:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Deref for Process {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_kept_for_longer_than_it_is_reported() {
        let log = Log::default();
        log.push("request a: alone".to_owned());
        (0..LOG_LINES).for_each(|_| log.push("request b: whole".to_owned()));
        assert!(log.has("request a", "alone") && !log.has("request b", "alone"));
        assert!(log.text().lines().count() == LOG_LINES && !log.text().contains("request a"));
    }
}
