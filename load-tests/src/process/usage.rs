//! The kernel's figures about processes and this machine.

use std::{fmt, fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Kernel clock ticks per second: a constant of the ABI on every Linux that Rust runs on.
const TICKS: f64 = 100.0;

/// A process at a moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// User and system time so far.
    pub(crate) cpu_s: f64,
    pub(crate) resident_mib: f64,
    pub(crate) fds: u64,
}

/// Bytes that a process has in memory.
pub(crate) fn resident_bytes(id: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes << 10)
}

/// One process.
fn usage(id: u32) -> Usage {
    let read = |name: &str| fs::read_to_string(format!("/proc/{id}/{name}")).unwrap_or_default();
    let stat = read("stat");
    // Behind the command's name, which may hold anything.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let resident_mib = resident_bytes(id).map_or(0.0, |bytes| bytes as f64 / f64::from(1 << 20));
    let fds = fs::read_dir(format!("/proc/{id}/fd")).map_or(0, |folder| folder.count() as u64);
    Usage { cpu_s: (ticks(11) + ticks(12)) / TICKS, resident_mib, fds }
}

/// Several processes together.
pub(crate) fn usage_of(ids: &[u32]) -> Usage {
    ids.iter().map(|id| usage(*id)).fold(Usage::default(), |sum, one| Usage {
        cpu_s: sum.cpu_s + one.cpu_s,
        resident_mib: sum.resident_mib + one.resident_mib,
        fds: sum.fds + one.fds,
    })
}

/// A process and its descendants, whichever of its threads started them.
pub(crate) fn family(id: u32) -> Vec<u32> {
    let mut all = vec![id];
    let mut at = 0;
    while at < all.len() {
        let threads = fs::read_dir(format!("/proc/{}/task", all[at])).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
        at += 1;
    }
    all
}

/// Bytes under a folder.
pub(crate) fn folder_bytes(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let one = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.flatten().map(one).sum()
}

/// The machine and the commit of a result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: f64,
    kernel: String,
    commit: String,
    /// Load average of the last minute at the start of the run: the machine's other load.
    load_average: f64,
    unix_time: u64,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, memory_gib, kernel, commit, load_average, unix_time: _ } = self;
        write!(
            f,
            "{cpu}, {cores} cores, {memory_gib:.1} GiB, {kernel}, commit {commit}, load average {load_average} at the start"
        )
    }
}

fn line_of(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
    value.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
}

/// This machine now.
pub(crate) fn machine() -> Machine {
    let memory = line_of("/proc/meminfo", "MemTotal");
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let changed = !output("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
    let commit = output("git", &["rev-parse", "--short=12", "HEAD"]);
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Machine {
        cpu: line_of("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_gib: memory.trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) / f64::from(1 << 20),
        kernel: output("uname", &["-sr"]),
        commit: if changed { format!("{commit}, changed") } else { commit },
        load_average: load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
        unix_time: since_1970.map_or(0, |time: Duration| time.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_any_thread_is_family() {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let (tell_id, told_id) = std::sync::mpsc::channel();
        // It stays: children of a thread that ended are the main thread's.
        let thread = std::thread::spawn(move || {
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            tell_id.send(child.id()).unwrap();
            told.recv().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
        });
        let child = told_id.recv().unwrap();
        let family = family(std::process::id());
        tell.send(()).unwrap();
        thread.join().unwrap();
        assert!(family.contains(&child), "{family:?}");
    }
}
