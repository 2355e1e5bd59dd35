//! What a replica did in the last hour: what its metrics count, as series over time.

use std::collections::BTreeMap;

use kvasir_types::Name;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Query of the series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SeriesQuery {
    /// Only points that are later than this, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
}

/// The series of the replica that answers, over the last hour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesResponse {
    /// Version of the service.
    pub version: String,
    /// When the replica started, in milliseconds since 1970: another value is another process, whose series begin anew.
    pub started_at_ms: u64,
    /// Time between two points, in seconds.
    pub step_s: u64,
    /// When each point was taken, in milliseconds since 1970.
    pub times_ms: Vec<u64>,
    /// The series. One that the replica has nothing of is left out.
    pub series: Vec<Series>,
    /// What is not kept over time.
    pub now: SeriesNow,
}

/// What of a metric is drawn as one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Series {
    /// What it is of.
    pub name: String,
    /// What tells it from others of that name.
    pub labels: BTreeMap<String, String>,
    /// Unit of the values.
    pub unit: String,
    /// One value for each of `times_ms`; null where there was none.
    pub values: Vec<Option<f64>>,
}

/// What a replica holds now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesNow {
    /// What the hot tier's memory would find if it were larger or smaller; empty before anything was asked for.
    pub hit_ratio_curve: Vec<CurvePoint>,
    /// The tenants that have most in the hot tier, largest first.
    pub hot_tenants: Vec<HotTenant>,
    /// Sides of the store, reads and writes, that fail every request and are left alone.
    pub breaker_open: u64,
}

/// One point of the estimated curve of hit ratios.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CurvePoint {
    /// Memory, as a multiple of what there is.
    pub memory: f64,
    /// Share of the bytes asked for in the last hour that it would have, 0 to 1.
    pub hit_ratio: f64,
}

/// What a tenant has in the hot tier of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HotTenant {
    /// The tenant.
    pub tenant: Name,
    /// Bytes in memory.
    pub cpu_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
}
