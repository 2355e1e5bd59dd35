//! The latest loads that clients reported to this replica, by tenant, in memory.

use std::collections::{HashMap, VecDeque};

use kvasir_api::{LOADS_KEPT_MAX, LoadRecord, LoadsQuery, ReportedLoad};
use kvasir_types::{LEVELS_MAX, Level, Name};
use parking_lot::Mutex;

use crate::{limits, wall_clock::unix_ms};

/// The loads of each tenant, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LoadLog(Mutex<HashMap<Name, VecDeque<ReportedLoad>>>);

impl LoadLog {
    /// Keeps a load. If there are too many, drops the tenant's oldest, or the tenant with the oldest latest
    /// report.
    pub(crate) fn keep(&self, tenant: &Name, mut record: LoadRecord) {
        // A level that no profile can have is a client's mistake, and would take memory.
        let is_level = |level: &Level, _: &mut u64| level.index() < LEVELS_MAX;
        record.bytes_by_level.retain(is_level);
        record.tokens_by_level.retain(is_level);
        let mut log = self.0.lock();
        if log.len() >= limits::LOAD_TENANTS_MAX && !log.contains_key(tenant) {
            let last = |loads: &VecDeque<ReportedLoad>| loads.back().map(|load| load.received_at_ms);
            let quietest = log.iter().min_by_key(|(_, loads)| last(loads)).map(|(tenant, _)| tenant.clone());
            quietest.and_then(|tenant| log.remove(&tenant));
        }
        let loads = log.entry(tenant.clone()).or_default();
        loads.push_back(ReportedLoad::new(record, unix_ms()));
        if loads.len() > LOADS_KEPT_MAX {
            loads.pop_front();
        }
    }

    /// The last loads of a tenant, newest first.
    pub(crate) fn last(&self, tenant: &Name, query: LoadsQuery) -> Vec<ReportedLoad> {
        let log = self.0.lock();
        let loads = log.get(tenant).into_iter().flatten().rev();
        let wanted = loads.filter(|load| load.missed || !query.missed);
        wanted.take(query.limit.unwrap_or(LOADS_KEPT_MAX)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn record(elapsed_ms: u64) -> LoadRecord {
        LoadRecord {
            slo_ms: 100,
            elapsed_ms,
            loaded_tokens: 1,
            recomputed_tokens: 0,
            bytes_by_level: (0..=u8::MAX).map(|level| (Level(level), 1)).collect(),
            direct_bytes: 0,
            tokens_by_level: (0..=u8::MAX).map(|level| (Level(level), 1)).collect(),
            saved_gpu_ms: 0,
            timeline: None,
        }
    }

    fn elapsed(log: &LoadLog, tenant: &str, query: LoadsQuery) -> Vec<u64> {
        log.last(&name(tenant), query).iter().map(|load| load.elapsed_ms).collect()
    }

    #[test]
    fn a_tenant_gets_its_last_loads_and_those_alone() {
        let log = LoadLog::default();
        for elapsed_ms in [50, 100, 101, 300] {
            log.keep(&name("a"), record(elapsed_ms));
        }
        log.keep(&name("b"), record(7));
        assert_eq!(elapsed(&log, "a", LoadsQuery::default()), [300, 101, 100, 50]);
        assert_eq!(elapsed(&log, "a", LoadsQuery { missed: true, limit: None }), [300, 101]);
        assert_eq!(elapsed(&log, "a", LoadsQuery { missed: true, limit: Some(1) }), [300]);
        assert_eq!(elapsed(&log, "b", LoadsQuery::default()), [7]);
        assert!(elapsed(&log, "c", LoadsQuery::default()).is_empty());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let log = LoadLog::default();
        for tenant in 0..2 * limits::LOAD_TENANTS_MAX {
            for elapsed_ms in 0..2 * LOADS_KEPT_MAX as u64 {
                log.keep(&name(&format!("t{tenant}")), record(elapsed_ms));
            }
        }
        let kept = log.0.lock();
        assert_eq!(kept.len(), limits::LOAD_TENANTS_MAX);
        assert!(kept.values().all(|loads| loads.len() == LOADS_KEPT_MAX));
        assert!(kept.values().flatten().all(|load| load.bytes_by_level.len() == LEVELS_MAX));
        let newest = kept.get(&name(&format!("t{}", 2 * limits::LOAD_TENANTS_MAX - 1))).expect("it is there");
        assert_eq!(newest.back().map(|load| load.elapsed_ms), Some(2 * LOADS_KEPT_MAX as u64 - 1));
    }
}
