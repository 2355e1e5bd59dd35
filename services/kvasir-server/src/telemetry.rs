//! Logging to standard error.

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{LogConfig, LogFormat};

/// Starts logging for the process. Does nothing where a subscriber is installed already.
pub fn init(config: &LogConfig) {
    let filter = EnvFilter::builder().parse_lossy(&config.filter);
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(true);
    // Reporting a line that could not be written panics where standard error is closed: requests are worth more.
    let builder = builder.log_internal_errors(false);
    let _ = match config.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
