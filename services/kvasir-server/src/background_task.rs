//! The background tasks of a replica by name: for metrics, the log and readiness.

/// A task beside those of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BackgroundTask {
    IndexFlush,
    RemovalsExpiry,
    Reload,
    Journal,
    Usage,
    Gc,
    Scrub,
    Series,
    Members,
    Egress,
    OpsListener,
    /// A job that an operator started. It does not run again.
    Job,
}

impl BackgroundTask {
    pub(crate) const ALL: [Self; 12] = [
        Self::IndexFlush,
        Self::RemovalsExpiry,
        Self::Reload,
        Self::Journal,
        Self::Usage,
        Self::Gc,
        Self::Scrub,
        Self::Series,
        Self::Members,
        Self::Egress,
        Self::OpsListener,
        Self::Job,
    ];

    /// Label of metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::IndexFlush => "index_flush",
            Self::RemovalsExpiry => "removals_expiry",
            Self::Reload => "reload",
            Self::Journal => "journal",
            Self::Usage => "usage",
            Self::Gc => "gc",
            Self::Scrub => "scrub",
            Self::Series => "series",
            Self::Members => "members",
            Self::Egress => "egress",
            Self::OpsListener => "ops_listener",
            Self::Job => "job",
        }
    }

    /// Whether a replica without this task must not receive traffic: it would accept revoked credentials, or
    /// offer removed chunks.
    pub(crate) const fn is_needed(self) -> bool {
        matches!(self, Self::Reload | Self::Journal)
    }
}
