//! Two namespaces and the link between them.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, bail, ensure};

/// Where the server listens.
const SERVER: &str = "10.231.77.1";
const CLIENT: &str = "10.231.77.2";
const PORT: u16 = 7480;

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

    /// Starts the server and waits until it says where it listens.
    pub(crate) fn serve(&self) -> anyhow::Result<Server> {
        let mut child = self.here(&self.server, &["--serve", &format!("{SERVER}:{PORT}")])?.spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("the server's output")?;
        let server = Server(child);
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line.starts_with("ready"), "the server did not start: {line:?}");
        Ok(server)
    }

    /// Runs the client to its end.
    pub(crate) fn load(&self, out: &Path, claim: super::Claim) -> anyhow::Result<()> {
        let out = out.to_str().context("the output folder's name is no text")?;
        let server = format!("http://{SERVER}:{PORT}");
        let mut client = self.here(&self.client, &["--load", out, &server, &self.server, claim.as_str()])?;
        let status = client.stdout(Stdio::inherit()).status()?;
        if !status.success() {
            bail!("the client failed");
        }
        Ok(())
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

/// Ends with its handle.
pub(crate) struct Server(Child);

impl Drop for Server {
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
