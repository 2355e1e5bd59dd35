//! Progress on stderr: a bar on a terminal, one plain line per finished step elsewhere.

use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A running step.
#[derive(Debug)]
pub struct Step {
    bar: ProgressBar,
    name: String,
    started: Instant,
}

impl Step {
    /// Starts a step without a known length.
    pub fn start(name: impl Into<String>) -> Self {
        let (name, terminal) = (name.into(), std::io::stderr().is_terminal());
        let bar = ProgressBar::with_draw_target(
            None,
            if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
        );
        bar.set_style(style("{spinner} {prefix} {msg:.dim}"));
        bar.set_prefix(name.clone());
        if terminal {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        Self { bar, name, started: Instant::now() }
    }

    /// Shows the step's progress, 0 to 1, and its present activity.
    pub fn at(&self, message: &str, part: f32) {
        if self.bar.length().is_none() {
            self.bar.set_length(1000);
            self.bar.set_style(style("{spinner} {prefix} {bar:24.cyan/dim} {msg:.dim}"));
        }
        self.bar.set_position((part.clamp(0.0, 1.0) * 1000.0) as u64);
        self.bar.set_message(message.to_owned());
    }

    /// Shows the present activity of a step without a known length.
    pub fn count(&self, message: &str) {
        self.bar.set_message(message.to_owned());
    }

    /// Ends the step with its result.
    pub fn done(self, result: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.bar.finish_and_clear();
        note(&format!("✓ {}: {result} ({seconds:.2} s)", self.name));
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// Prints a line for people, never for programs.
pub fn note(text: &str) {
    // A closed stderr ends nothing.
    let _ = writeln!(std::io::stderr(), "{text}");
}
