//! Metrics of the replica's own health.

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::counters;
use crate::background_task::BackgroundTask;

/// A part of the cache directory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CachePart {
    Index,
    HotTier,
}

impl CachePart {
    const ALL: [Self; 2] = [Self::Index, Self::HotTier];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::HotTier => "hot_tier",
        }
    }
}

/// Files that are read again when they change, by the setting that names them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReloadedFiles {
    Tenants,
    Jwks,
    Tls,
    EncryptionKeys,
}

impl ReloadedFiles {
    const ALL: [Self; 4] = [Self::Tenants, Self::Jwks, Self::Tls, Self::EncryptionKeys];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Tenants => "auth.tenants_file",
            Self::Jwks => "auth.jwks_file",
            Self::Tls => "tls",
            Self::EncryptionKeys => "encryption.keys_file",
        }
    }
}

/// The metrics. Every series exists from the start: an alert on increases misses a series that begins at 1.
#[derive(Debug)]
pub(crate) struct HealthMetrics {
    background_panics: IntCounterVec,
    cache_unusable: IntGaugeVec,
    files_rejected: IntGaugeVec,
}

impl HealthMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let this = Self {
            background_panics: counters(
                "kvasir_background_panics_total",
                "Panics of background tasks; each task restarts after a pause.",
                &["task"],
            ),
            cache_unusable: IntGaugeVec::new(
                Opts::new(
                    "kvasir_cache_unusable",
                    "1 for each part of the cache directory that could not be used at start and is in memory instead.",
                ),
                &["part"],
            )
            .expect("a constant name"),
            files_rejected: IntGaugeVec::new(
                Opts::new(
                    "kvasir_files_rejected",
                    "1 for changed files that cannot be used: their previous contents stay in force.",
                ),
                &["setting"],
            )
            .expect("a constant name"),
        };
        for task in BackgroundTask::ALL {
            this.background_panics.with_label_values(&[task.as_str()]);
        }
        for part in CachePart::ALL {
            this.cache_unusable.with_label_values(&[part.as_str()]);
        }
        for files in ReloadedFiles::ALL {
            this.files_rejected.with_label_values(&[files.as_str()]);
        }
        registry.register(Box::new(this.background_panics.clone())).expect("names are distinct");
        registry.register(Box::new(this.cache_unusable.clone())).expect("names are distinct");
        registry.register(Box::new(this.files_rejected.clone())).expect("names are distinct");
        this
    }

    pub(crate) fn background_panicked(&self, task: BackgroundTask) {
        self.background_panics.with_label_values(&[task.as_str()]).inc();
    }

    /// Records a part of the cache directory that cannot be used.
    pub(crate) fn cache_unusable(&self, part: CachePart) {
        self.cache_unusable.with_label_values(&[part.as_str()]).set(1);
    }

    /// Records whether changed files cannot be used.
    pub(crate) fn files_rejected(&self, files: ReloadedFiles, are_rejected: bool) {
        self.files_rejected.with_label_values(&[files.as_str()]).set(are_rejected.into());
    }
}
