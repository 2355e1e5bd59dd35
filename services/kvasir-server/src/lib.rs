#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod auth;
mod background;
mod config;
mod handlers;
mod limits;
mod metrics;
mod server;
mod state;
pub mod telemetry;

pub use config::{
    CacheConfig, Config, ConfigError, EXIT_CONFIG, GcConfig, JournalConfig, Layers, LogConfig, LogFormat,
    Mistake, SETTINGS, ServerConfig, Setting, USAGE,
};
pub use server::{RunError, listen, rebuild_index, run, shutdown_signal};
