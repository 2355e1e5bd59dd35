//! A replica's activity in the last hour: its metrics as time series.

use std::collections::BTreeMap;

use kvasir_types::Name;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Query of the series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SeriesQuery {
    /// Only points later than this, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
}

/// The series of the responding replica over the last hour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesResponse {
    /// Version of the service.
    pub version: String,
    /// When the replica started, in milliseconds since 1970. A different value means a new process, whose
    /// series start again.
    pub started_at_ms: u64,
    /// Interval between points, in seconds.
    pub step_s: u64,
    /// When each point was taken, in milliseconds since 1970.
    pub times_ms: Vec<u64>,
    /// The series. Series that the replica does not have are omitted.
    pub series: Vec<Series>,
    /// Values without a history.
    pub now: SeriesNow,
}

/// One line of a metric's plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Series {
    /// Name of the series.
    pub name: String,
    /// Labels that distinguish it from others of the same name.
    pub labels: BTreeMap<String, String>,
    /// Unit of the values.
    pub unit: String,
    /// One value for each of `times_ms`; null if there was none.
    pub values: Vec<Option<f64>>,
}

/// The present state of a replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesNow {
    /// Estimated hit ratios of the hot tier's memory at other sizes; empty before the first request.
    pub hit_ratio_curve: Vec<CurvePoint>,
    /// The tenants with the most data in the hot tier, largest first.
    pub hot_tenants: Vec<HotTenant>,
    /// Open circuit breakers: sides of the store, reads and writes, whose requests all fail.
    pub breaker_open: u64,
}

/// One point of the curve of estimated hit ratios.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CurvePoint {
    /// Memory, as a multiple of the present size.
    pub memory: f64,
    /// Share of the bytes requested in the last hour that it would serve, 0 to 1.
    pub hit_ratio: f64,
}

/// A tenant's data in the hot tier of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HotTenant {
    /// The tenant.
    pub tenant: Name,
    /// Bytes in memory.
    pub cpu_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
}
