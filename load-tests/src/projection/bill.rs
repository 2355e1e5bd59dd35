//! A month's bill, line by line, at published prices.

use serde::{Deserialize, Serialize};

use super::inputs::Inputs;

/// Seconds of a month.
const MONTH_S: f64 = 30.4 * 86_400.0;
/// S3 bills in these: 2³⁰ bytes.
const GIB: f64 = 1_073_741_824.0;
/// Of the bytes between engines and replicas, those that cross zones with three zones of equal size, as engines ask the replica of
/// their zone first.
const BETWEEN_ZONES: f64 = 4.0 / 9.0;

/// What is billed of an installation.
pub(super) struct Usage {
    pub(super) stored_bytes: f64,
    pub(super) replicas: f64,
    /// Requests a second.
    pub(super) chunk_gets: f64,
    pub(super) chunk_puts: f64,
    pub(super) put_listings: f64,
    pub(super) lookup_listings: f64,
    pub(super) journal_appends: f64,
    pub(super) journal_listings: f64,
    pub(super) journal_reads: f64,
    pub(super) collector_listings: f64,
    /// Bytes a second.
    pub(super) store_to_replica: f64,
    pub(super) engines_and_replicas: f64,
}

/// Dollars a month.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Bill {
    pub(super) storage: f64,
    pub(super) chunk_gets: f64,
    pub(super) chunk_puts: f64,
    pub(super) put_listings: f64,
    pub(super) lookup_listings: f64,
    pub(super) journal_appends: f64,
    pub(super) journal_listings: f64,
    pub(super) journal_reads: f64,
    pub(super) collector_listings: f64,
    pub(super) store_to_replica: f64,
    pub(super) replicas: f64,
    /// All of the above: everything within one zone.
    pub(super) sum: f64,
    /// What traffic between three zones costs on top.
    pub(super) between_zones: f64,
}

impl Bill {
    pub(super) fn new(inputs: &Inputs, usage: &Usage) -> Self {
        let usd = |name: &str| inputs.value(name);
        let writes = |per_s: f64| per_s * MONTH_S * usd("usd_put_post_list");
        let reads = |per_s: f64| per_s * MONTH_S * usd("usd_get");
        let traffic = |bytes_per_s: f64, name: &str| bytes_per_s * MONTH_S / GIB * usd(name);
        let mut bill = Self {
            storage: storage(inputs, usage.stored_bytes / GIB),
            chunk_gets: reads(usage.chunk_gets),
            chunk_puts: writes(usage.chunk_puts),
            put_listings: writes(usage.put_listings),
            lookup_listings: writes(usage.lookup_listings),
            journal_appends: writes(usage.journal_appends),
            journal_listings: writes(usage.journal_listings),
            journal_reads: reads(usage.journal_reads),
            collector_listings: writes(usage.collector_listings),
            store_to_replica: traffic(usage.store_to_replica, "usd_gib_store_to_replica"),
            replicas: usage.replicas * usd("usd_replica_hour") * MONTH_S / 3_600.0,
            sum: 0.0,
            between_zones: traffic(usage.engines_and_replicas * BETWEEN_ZONES, "usd_gib_between_zones"),
        };
        bill.sum = bill.storage + bill.requests() + bill.store_to_replica + bill.replicas;
        bill
    }

    /// All requests to the store.
    pub(super) fn requests(&self) -> f64 {
        self.chunk_gets
            + self.chunk_puts
            + self.put_listings
            + self.lookup_listings
            + self.journal_appends
            + self.journal_listings
            + self.journal_reads
            + self.collector_listings
    }
}

/// Each GiB at the price of its tier.
fn storage(inputs: &Inputs, gib: f64) -> f64 {
    let tiers = [
        (50.0 * 1_024.0, "usd_gib_month_first_50_tib"),
        (450.0 * 1_024.0, "usd_gib_month_next_450_tib"),
        (f64::INFINITY, "usd_gib_month_beyond"),
    ];
    let mut left = gib;
    let of_tier = |(most, name): (f64, &str)| {
        let here = left.min(most);
        left -= here;
        here * inputs.value(name)
    };
    tiers.into_iter().map(of_tier).sum()
}
