//! Results to test with.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    Scaling,
    clients::Spreading,
    conversation::Conversations,
    hot::{HotReads, ReplicaLoss},
    membership::{Change, ReplicasChanged},
};
use crate::{process::usage::Machine, traffic::record::Recorder};

pub(super) fn machine(commit: &str) -> Machine {
    let machine = json!({
        "cpu": "a CPU", "cores": 2, "memory_gib": 24.0, "kernel": "Linux", "commit": commit,
        "load_average": 0.0, "unix_time": 0
    });
    serde_json::from_value(machine).expect("a machine")
}

fn hot_reads(replicas: usize, mb_per_s: f64) -> HotReads {
    let lost = ReplicaLoss {
        killed_at_s: 5.0,
        summary: Recorder::default().summary(),
        acknowledged: 9,
        not_found_afterwards: 0,
    };
    HotReads {
        replicas,
        mb_per_s,
        cpu_of_replicas: 0.3,
        cpu_of_clients: 0.3,
        unique: 0.9,
        cold_lookups: 9,
        cold_lookups_missed: 0,
        idle_store_requests_per_s: 0.04 * replicas as f64,
        with_a_replica_lost: (replicas > 1).then_some(lost),
    }
}

fn conversations(replicas: usize, template_share: f64, hot_share: f64) -> Conversations {
    Conversations {
        trace: "a trace".to_owned(),
        replicas,
        spreading: Spreading::Routes,
        template_share,
        prompts: 9,
        chunks: 9,
        chunks_stored: 9,
        store_requests: BTreeMap::new(),
        memory_bytes_of_each: 9,
        hot_share,
        busiest_over_mean: 1.2,
        unique: 0.9,
    }
}

fn changed(change: Change, spreading: Spreading, recovered_after_s: f64) -> ReplicasChanged {
    ReplicasChanged {
        change,
        replicas: 8,
        spreading,
        rate: 9.0,
        first_stopped_at_s: 20.0,
        last_ready_at_s: 40.0,
        hot_before: 1.0,
        hot_lowest: 0.5,
        recovered_after_s: Some(recovered_after_s),
        hot_share: Vec::new(),
        summary: Recorder::default().summary(),
    }
}

/// Keeps every bound, some of them barely.
pub(super) fn kept(machine: &Machine) -> Scaling {
    Scaling {
        what: String::new(),
        machine: machine.clone(),
        earlier: BTreeMap::new(),
        link_mbps: 200,
        seed: 1,
        skipped: None,
        rows: vec![hot_reads(1, 10.0), hot_reads(8, 72.5)],
        conversations: vec![
            conversations(1, 0.0, 0.3),
            conversations(8, 0.0, 0.295),
            Conversations { spreading: Spreading::Chance, unique: 0.2, ..conversations(8, 0.0, 0.1) },
            conversations(1, 0.6, 0.5),
            conversations(8, 0.6, 0.4),
        ],
        restarts: vec![
            changed(Change::RollingRestart, Spreading::Routes, 9.0),
            changed(Change::RollingRestart, Spreading::Chance, 20.0),
            changed(Change::OneLeaves, Spreading::Routes, 9.0),
        ],
    }
}
