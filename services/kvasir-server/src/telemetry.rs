//! Logging to standard error.

use std::io::{IsTerminal as _, stderr};

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{LogConfig, LogFormat};

/// The filter, without `s3s` unless it is named: that crate logs every refused request as an error. The
/// service logs its own faults itself, and metrics count refusals.
fn quiet(filter: &str) -> String {
    if filter.contains("s3s") { filter.to_owned() } else { format!("{filter},s3s=off") }
}

/// Starts logging for the process. Does nothing if a subscriber is already installed.
pub fn init(config: &LogConfig) {
    let filter = EnvFilter::builder().parse_lossy(quiet(&config.filter));
    let builder = fmt().with_env_filter(filter).with_writer(stderr).with_target(true);
    // Files and pipes get no colours.
    let builder = builder.with_ansi(stderr().is_terminal());
    // Reporting a line that could not be written panics if standard error is closed; keep serving instead.
    let builder = builder.log_internal_errors(false);
    let _ = match config.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
