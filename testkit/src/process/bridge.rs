//! Hosts of their own on this machine: network namespaces on a bridge, with a firewall in each.
//!
//! Needs root, `ip` and `nft`. Invariants: names carry the process id and a number, so that two
//! runs never meet; dropping a [`Bridge`] removes every namespace it made, and with them all links
//! and rules.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Hosts of one bridge: one digit of the address is theirs.
const HOSTS_MAX: usize = 9;

/// Bridges made by this process, for their names.
static BRIDGES: AtomicU32 = AtomicU32::new(0);

/// Several hosts that reach each other over a bridge.
#[derive(Debug)]
pub struct Bridge {
    namespace: String,
    hosts: Vec<Host>,
}

/// One host: a network namespace with one address.
#[derive(Debug, Clone)]
pub struct Host {
    namespace: String,
    address: String,
}

impl Host {
    /// Its network namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its address, without a port.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Bridge {
    /// Why no bridge can be made here; `None` if one can.
    pub fn obstacle() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("network namespaces need root".to_owned());
        }
        let missing = ["ip", "nft"].into_iter().find(|tool| run(tool, &["-V"]).is_err());
        missing.map(|tool| format!("`{tool}` is not installed"))
    }

    /// Makes a bridge with `count` hosts at `10.78.0.1` and up.
    pub fn new(count: usize) -> Result<Self, BridgeError> {
        assert!((1..=HOSTS_MAX).contains(&count), "hosts are 1 to {HOSTS_MAX}, not {count}");
        let number = BRIDGES.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("s{}x{number}", std::process::id());
        let mut bridge = Self { namespace: format!("{prefix}br"), hosts: Vec::new() };
        ip(&["netns", "add", &bridge.namespace])?;
        ip(&["-n", &bridge.namespace, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &bridge.namespace, "link", "set", "br0", "up"])?;
        for index in 1..=count {
            bridge.add_host(format!("{prefix}h{index}"), index)?;
        }
        Ok(bridge)
    }

    fn add_host(&mut self, namespace: String, index: usize) -> Result<(), BridgeError> {
        let host = Host { address: format!("10.78.0.{index}"), namespace };
        let (at, port) = (host.namespace.clone(), format!("v{index}"));
        let network = format!("{}/24", host.address);
        ip(&["netns", "add", &at])?;
        // Kept from here on, so that a failure below still removes it.
        self.hosts.push(host);
        let end = ["link", "add", "eth0", "netns", &at, "type", "veth", "peer", "name", &port];
        ip(&[&end[..], &["netns", &self.namespace]].concat())?;
        ip(&["-n", &self.namespace, "link", "set", &port, "master", "br0", "up"])?;
        ip(&["-n", &at, "addr", "add", &network, "dev", "eth0"])?;
        ip(&["-n", &at, "link", "set", "eth0", "up"])?;
        ip(&["-n", &at, "link", "set", "lo", "up"])?;
        nft(&at, "add table inet faults")?;
        nft(&at, "add chain inet faults in { type filter hook input priority 0; }")
    }

    /// Host `index`, from zero.
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// `to` drops whatever comes from `from`, until [`Self::heal`].
    pub fn drop_packets(&self, from: usize, to: usize) -> Result<(), BridgeError> {
        let rule =
            format!("add rule inet faults in ip saddr {} counter drop", self.hosts[from].address);
        nft(&self.hosts[to].namespace, &rule)
    }

    /// `to` answers every connection of `from` with a reset, until [`Self::heal`].
    pub fn reset_connections(&self, from: usize, to: usize) -> Result<(), BridgeError> {
        let source = &self.hosts[from].address;
        // The match on TCP is what lets the answer be a reset.
        let from = format!("ip saddr {source} meta l4proto tcp");
        let rule = format!("add rule inet faults in {from} counter reject with tcp reset");
        nft(&self.hosts[to].namespace, &rule)
    }

    /// `one` and `other` drop whatever comes from each other, until [`Self::heal`].
    pub fn cut(&self, one: usize, other: usize) -> Result<(), BridgeError> {
        self.drop_packets(one, other)?;
        self.drop_packets(other, one)
    }

    /// `host` drops so many of a hundred packets from the others, drawn at random, until
    /// [`Self::heal`].
    pub fn lose_packets(&self, host: usize, percent: u32) -> Result<(), BridgeError> {
        let rule = format!(
            "add rule inet faults in iif eth0 numgen random mod 100 < {percent} counter drop"
        );
        nft(&self.hosts[host].namespace, &rule)
    }

    /// Packets that the rules of `host` have taken since they were made: a fault was one.
    pub fn taken_packets(&self, host: usize) -> Result<u64, BridgeError> {
        let namespace = &self.hosts[host].namespace;
        let list = ["netns", "exec", namespace, "nft", "list", "chain", "inet", "faults", "in"];
        let text = output("ip", &list)?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let counts = words.windows(2).filter(|pair| pair[0] == "packets");
        Ok(counts.filter_map(|pair| pair[1].parse::<u64>().ok()).sum())
    }

    /// Resets every established connection that `host` has with `other`; how many those were.
    pub fn reset_established(&self, host: usize, other: usize) -> Result<usize, BridgeError> {
        let (namespace, other) = (&self.hosts[host].namespace, &self.hosts[other].address);
        let kill = ["netns", "exec", namespace, "ss", "-H", "-K", "-t", "state", "established"];
        let text = output("ip", &[&kill[..], &["dst", other]].concat())?;
        Ok(text.lines().filter(|line| !line.trim().is_empty()).count())
    }

    /// Takes every rule back.
    pub fn heal(&self) -> Result<(), BridgeError> {
        self.hosts.iter().try_for_each(|host| nft(&host.namespace, "flush chain inet faults in"))
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let namespaces = self.hosts.iter().map(|host| &host.namespace).chain([&self.namespace]);
        for namespace in namespaces {
            let removed = ip(&["netns", "del", namespace]);
            debug_assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
        }
    }
}

/// A tool that makes hosts refused.
#[derive(Debug, thiserror::Error)]
#[error("`{command}` failed: {said}")]
pub struct BridgeError {
    command: String,
    said: String,
}

fn ip(arguments: &[&str]) -> Result<(), BridgeError> {
    run("ip", arguments)
}

fn nft(namespace: &str, rule: &str) -> Result<(), BridgeError> {
    run("ip", &["netns", "exec", namespace, "nft", rule])
}

fn run(tool: &str, arguments: &[&str]) -> Result<(), BridgeError> {
    output(tool, arguments).map(drop)
}

fn output(tool: &str, arguments: &[&str]) -> Result<String, BridgeError> {
    let failed =
        |said: String| BridgeError { command: format!("{tool} {}", arguments.join(" ")), said };
    let output = Command::new(tool).args(arguments).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::{Program, skip};
    use super::*;
    use std::time::Duration;

    /// Whether host 0 answers a connection of host 1: nobody listens, so the answer is a refusal,
    /// and it comes at once or not at all.
    fn is_answered(bridge: &Bridge) -> bool {
        let script = format!("exec 3<>/dev/tcp/{}/7000", bridge.host(0).address());
        let arguments = ["1", "bash", "-c", &script];
        let client = Program::new("timeout", "client").arguments(arguments).on(bridge.host(1));
        let status = client.start().unwrap().wait_exit(Duration::from_secs(10)).unwrap();
        match status.code() {
            Some(1) => true,
            Some(124) => false,
            other => panic!("the client ended with {other:?}"),
        }
    }

    #[test]
    fn hosts_reach_each_other_until_a_rule_says_no() {
        if let Some(obstacle) = Bridge::obstacle() {
            return skip("hosts_reach_each_other_until_a_rule_says_no", &obstacle);
        }
        let bridge = Bridge::new(2).unwrap();
        assert!(is_answered(&bridge), "no rule yet");
        bridge.drop_packets(1, 0).unwrap();
        assert!(!is_answered(&bridge), "dropped");
        assert!(bridge.taken_packets(0).unwrap() > 0, "and counted");
        bridge.heal().unwrap();
        bridge.reset_connections(1, 0).unwrap();
        assert!(is_answered(&bridge), "reset");
    }
}
