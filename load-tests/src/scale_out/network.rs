//! Network namespaces, each behind a link of a set rate.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

const PORT: u16 = 7480;
/// Address of this namespace's end of the bridge.
const BRIDGE: [u8; 4] = [10, 232, 77, 254];

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("no `ip` (iproute2)")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {arguments}`: {}", error.trim());
    Ok(())
}

/// A bridge in this namespace, and one namespace per replica behind it. Removed on drop.
pub(super) struct BridgedNetwork {
    bridge: String,
    namespaces: Vec<String>,
}

impl BridgedNetwork {
    /// Links of `link_mbps` Mb/s from each replica to the rest.
    pub(super) fn new(replicas: usize, link_mbps: u64) -> Result<Self> {
        let id = std::process::id();
        let mut network = Self { bridge: format!("kvb{id}"), namespaces: Vec::new() };
        let bridge = network.bridge.clone();
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("addr add {}/24 dev {bridge}", Ipv4Addr::from(BRIDGE)))?;
        ip(&format!("link set {bridge} up"))?;
        for nth in 0..replicas {
            let name = format!("kvr{id}-{nth}");
            network.namespaces.push(name.clone());
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add kv{id}-{nth} type veth peer name wire netns {name}"))?;
            ip(&format!("link set kv{id}-{nth} master {bridge}"))?;
            ip(&format!("link set kv{id}-{nth} up"))?;
            ip(&format!("-n {name} addr add {}/24 dev wire", network.address(nth).ip()))?;
            ip(&format!("-n {name} link set wire up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!(
                "netns exec {name} tc qdisc replace dev wire root tbf rate {link_mbps}mbit burst 256kb latency 100ms"
            ))?;
        }
        Ok(network)
    }

    /// Replicas that it is for.
    pub(super) fn replicas(&self) -> usize {
        self.namespaces.len()
    }

    /// The address of a replica.
    #[allow(clippy::unused_self, reason = "an address without its network is none")]
    pub(super) fn address(&self, nth: usize) -> SocketAddr {
        let [a, b, c, _] = BRIDGE;
        SocketAddr::from(([a, b, c, nth as u8 + 1], PORT))
    }

    /// The address of the object store, which all replicas reach.
    pub(super) fn store_address() -> SocketAddr {
        SocketAddr::from((BRIDGE, PORT))
    }

    /// The command that runs a program in a replica's namespace.
    pub(super) fn enter(&self, nth: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.namespaces[nth]].map(str::to_owned).into()
    }
}

impl Drop for BridgedNetwork {
    fn drop(&mut self) {
        for name in &self.namespaces {
            // May not exist if creating it failed.
            let _ = ip(&format!("netns del {name}"));
        }
        let _ = ip(&format!("link del {}", self.bridge));
    }
}
