//! Logging to standard error.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{IsTerminal as _, stderr},
    panic::PanicHookInfo,
};

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
    let installed = match config.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    if installed.is_ok() {
        log_panics();
    }
}

/// Logs panics in the format of all other lines: what collects JSON lines drops the text that Rust writes.
/// With a filter that drops these lines, Rust's text is written as before.
fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if tracing::enabled!(tracing::Level::ERROR) { log_panic(panic) } else { before(panic) }
    }));
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message");
    let location = panic.location().map(tracing::field::display);
    // Captured only if RUST_BACKTRACE is set, as for Rust's text.
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(backtrace));
    let thread = std::thread::current();
    tracing::error!(location, backtrace, thread = thread.name(), "panicked: {message}");
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic while locked").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_panic_is_a_line_of_the_log_in_its_format() {
        log_panics();
        let lines = Lines::default();
        let writer = lines.clone();
        // Other tests' threads have no subscriber, so that their panics are written as always.
        let subscriber = fmt().json().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            std::panic::catch_unwind(|| panic!("a bug in chunk {}", 7)).expect_err("it panics");
        });
        let lines = lines.0.lock().expect("no panic while locked");
        let line: serde_json::Value = serde_json::from_slice(&lines).expect("one line of JSON");
        assert_eq!(line["level"], "ERROR");
        assert_eq!(line["fields"]["message"], "panicked: a bug in chunk 7");
        let location = line["fields"]["location"].as_str().expect("a location");
        assert!(location.contains("telemetry.rs:"), "{location}");
    }
}
