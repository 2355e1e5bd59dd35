//! Logging to standard error.

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{LogConfig, LogFormat};

/// The filter, without `s3s` unless it names it: that crate calls every request that it refuses an error. What the service itself is
/// to blame for has lines of its own, and metrics count refusals.
fn quiet(filter: &str) -> String {
    if filter.contains("s3s") { filter.to_owned() } else { format!("{filter},s3s=off") }
}

/// Starts logging for the process. Does nothing where a subscriber is installed already.
pub fn init(config: &LogConfig) {
    let filter = EnvFilter::builder().parse_lossy(quiet(&config.filter));
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(true);
    // Reporting a line that could not be written panics where standard error is closed: requests are worth more.
    let builder = builder.log_internal_errors(false);
    let _ = match config.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
