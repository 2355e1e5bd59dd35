#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod auth;
mod background;
mod config;
mod egress;
mod handlers;
mod idle;
mod jobs;
mod keys;
mod limits;
mod metrics;
mod metrics_api;
mod metrics_hot;
mod ops_listener;
mod peers;
mod quota;
mod reload;
mod room;
mod server;
mod state;
pub mod telemetry;
mod tls;

pub use auth::{AuthError, NewToken};
pub use config::{
    AuthConfig, CacheConfig, Config, ConfigError, GcConfig, HotConfig, JournalConfig, JwtConfig, Layers,
    LogConfig, LogFormat, Mistake, RENAMED_SETTINGS, RenamedSetting, SETTINGS, ScrubConfig, ServerConfig,
    Setting, TlsConfig,
};
pub use keys::KeysError;
pub use server::{RunError, listen, open_store, rebuild_index, run, shutdown_signal};
pub use tls::TlsError;
