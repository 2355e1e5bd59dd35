//! Two namespaces and the link between them.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use anyhow::{Context, bail, ensure};

use super::Claim;

/// The server's address.
const SERVER: &str = "10.231.77.1";
const CLIENT: &str = "10.231.77.2";
const PORT: u16 = 7480;
/// Longest that the server takes to start.
const START_MAX: Duration = Duration::from_secs(60);
/// Maximum time of the client in total: its phases have separate limits; this one covers everything outside
/// them.
const CLIENT_MAX: Duration = Duration::from_secs(400);
/// The same for each round of loads beside a competing process.
const ROUND_MAX: Duration = Duration::from_secs(10);

/// Exist until dropped. Named after this process, so that two runs do not meet.
pub(crate) struct Namespaces {
    server: String,
    client: String,
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let output =
        Command::new("ip").args(arguments.split(' ')).output().context("`ip` (iproute2) is not installed")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {arguments}`: {}", error.trim());
    Ok(())
}

impl Namespaces {
    /// Makes them, with the link at full speed.
    pub(crate) fn make() -> anyhow::Result<Self> {
        let id = std::process::id();
        let made = Self { server: format!("kvs{id}"), client: format!("kvc{id}") };
        let Self { server, client } = &made;
        ip(&format!("netns add {server}"))?;
        ip(&format!("netns add {client}"))?;
        ip(&format!("-n {server} link add wire type veth peer name wire netns {client}"))?;
        for (namespace, address) in [(server, SERVER), (client, CLIENT)] {
            ip(&format!("-n {namespace} addr add {address}/24 dev wire"))?;
            ip(&format!("-n {namespace} link set wire up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        shape(server, 1000.0).context("the kernel has no token bucket filter")?;
        Ok(made)
    }

    /// Starts the server and waits until it prints its address.
    pub(crate) fn serve(&self) -> anyhow::Result<Running> {
        let mut child = self.here(&self.server, &["--serve", &format!("{SERVER}:{PORT}")])?.spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("the server's output")?;
        let server = Running(child);
        let line = within(START_MAX, move || BufReader::new(output).read_line(&mut line).map(|_| line))
            .with_context(|| format!("the server did not start: {}", self.state()))??;
        ensure!(line.starts_with("ready"), "the server did not start: {line:?}");
        Ok(server)
    }

    /// Runs the client to its end.
    pub(crate) fn load(&self, out: &Path, claim: Claim) -> anyhow::Result<()> {
        let out = out.to_str().context("the output folder's name is no text")?;
        let server = format!("http://{SERVER}:{PORT}");
        let text = claim.to_text();
        let mut client = self.here(&self.client, &["--load", out, &server, &self.server, &text])?;
        let mut client = Running(client.stdin(Stdio::piped()).stdout(Stdio::inherit()).spawn()?);
        let pid = client.0.id();
        let longest = match claim {
            Claim::Bytes | Claim::Slo => CLIENT_MAX,
            Claim::Slowed(rounds) => CLIENT_MAX + ROUND_MAX * rounds.get(),
        };
        let status = within(longest, move || client.0.wait());
        let Some(status) = status else {
            // The thread that waits for it owns it.
            let _ = Command::new("kill").arg("-9").arg(pid.to_string()).status();
            bail!("the client was not done after {longest:?}: {}", self.state());
        };
        if !status?.success() {
            bail!("the client failed: {}", self.state());
        }
        Ok(())
    }

    /// The state of the link and the connections, for the report of a failure.
    fn state(&self) -> String {
        let show = |namespace: &str, what: &str| {
            let arguments = format!("netns exec {namespace} {what}");
            let output = Command::new("ip").args(arguments.split(' ')).output();
            let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
            format!("\n{namespace}: {what}\n{}", text.unwrap_or_else(|error| error.to_string()))
        };
        show(&self.server, "tc -s qdisc show dev wire") + &show(&self.client, "ss -tin")
    }

    fn here(&self, namespace: &str, arguments: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(std::env::current_exe()?).args(arguments);
        command.stdout(Stdio::piped());
        Ok(command)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.client] {
            // May not exist where making them failed half way.
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}

/// The result of a blocking call, if it returns in time; otherwise it keeps running.
fn within<T: Send + 'static>(time: Duration, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(call()));
    receiver.recv_timeout(time).ok()
}

/// A process that ends with its handle.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Gives the link what `stated_mbps` are at the demo's scale.
///
/// The queue holds 12 KB, a tenth of a second at the full rate: a switch's buffer, at this scale.
pub(crate) fn shape(namespace: &str, stated_mbps: f64) -> anyhow::Result<()> {
    let rate = (stated_mbps * 1e6 / super::SCALE) as u64;
    let command = format!(
        "netns exec {namespace} tc qdisc replace dev wire root tbf rate {rate}bit burst 3000 limit 12000"
    );
    ip(&command)
}
