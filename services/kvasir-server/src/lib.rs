#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![allow(unexpected_cfgs, reason = "`fuzzing` is set by the builds of fuzz targets")]

mod api_error;
mod audit;
mod auth;
mod background;
mod background_task;
mod body_room;
mod cluster;
mod config;
mod connection;
mod connection_limiter;
mod egress;
mod encryption_keys;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gathered_body;
mod handlers;
mod idle_timer;
mod jobs;
mod journal_sync;
mod limits;
mod loads;
mod metrics;
mod middleware;
#[cfg(test)]
mod mutation;
mod ops_listener;
mod quota;
mod quota_reservation;
mod reload;
mod router;
mod run_error;
mod s3;
mod series;
mod server;
mod state;
pub mod telemetry;
mod tls;
mod toml_error;
mod trainings;
mod wall_clock;

pub use auth::{NewAccessKey, NewToken};
pub use config::{
    AuthConfig, CacheConfig, ClusterConfig, Config, ConfigError, GcConfig, HotConfig, JournalConfig,
    JwtConfig, Layers, LogConfig, LogFormat, MemberSource, Mistake, SETTINGS, ScrubConfig, ServerConfig,
    Setting, TlsConfig,
};
pub use limits::{
    JOURNAL_COUNTS_EVERY, JOURNAL_READS_PER_SECOND, JOURNAL_ROWS_MEMBERS_MAX, JOURNAL_SHARED_INTERVAL_MAX,
    JOURNAL_STORED_TURNS, KNOWN_TAILS_EVERY,
};
pub use run_error::RunError;
pub use server::{Listeners, listen, open_store, run, shutdown_signal};
