//! The `kvasir` binary from outside: what a user types, what comes back, and what happens with bad input.

mod demo;
mod engine;
mod offline;
mod operate;
mod service;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

/// Exit codes, as `kvasir --help` lists them.
mod exit {
    pub(crate) const NOTHING: i32 = 1;
    pub(crate) const USAGE: i32 = 2;
    pub(crate) const CONFIG: i32 = 64;
    pub(crate) const DATA: i32 = 65;
    pub(crate) const NO_INPUT: i32 = 66;
    pub(crate) const UNAVAILABLE: i32 = 69;
    pub(crate) const NO_OUTPUT: i32 = 73;
}

/// A folder to run commands in.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).expect("writable");
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Runs `kvasir` with the words of `line`, in the folder, with a clean environment.
    fn run(&self, line: &str) -> Run {
        self.run_with(line, &[])
    }

    fn run_with(&self, line: &str, env: &[(&str, &str)]) -> Run {
        let output = command(self.folder.path(), line).envs(env.iter().copied()).output().expect("starts");
        Run { line: line.to_owned(), output }
    }

    /// Runs a command that must work and returns its stdout.
    fn ok(&self, line: &str) -> String {
        self.run(line).succeeds()
    }
}

fn command(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    command.args(line.split_whitespace()).current_dir(folder);
    // The tests' own environment must not configure the service.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVASIR_") || name.to_string_lossy().starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    command
}

/// A finished command.
struct Run {
    line: String,
    output: Output,
}

impl Run {
    fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn succeeds(self) -> String {
        assert!(self.output.status.success(), "kvasir {}:\n{}{}", self.line, self.stdout(), self.stderr());
        self.stdout()
    }

    /// The command fails with `code`, says every one of `needles`, and does not panic.
    fn fails(self, code: i32, needles: &[&str]) {
        let stderr = self.stderr();
        assert_eq!(self.output.status.code(), Some(code), "kvasir {}:\n{stderr}", self.line);
        assert!(!stderr.contains("panicked"), "kvasir {}:\n{stderr}", self.line);
        for needle in needles {
            assert!(stderr.contains(needle), "kvasir {}: {needle:?} is not in\n{stderr}", self.line);
        }
    }
}

/// English without end, different for every seed: enough for a small model to have something to say about.
fn prose(seed: u32, words: usize) -> String {
    const WORDS: &[&str] = &[
        "the", "old", "man", "went", "down", "to", "river", "and", "sat", "upon", "a", "stone", "while",
        "his", "daughter", "counted", "boats", "that", "came", "in", "from", "sea", "with", "evening",
        "light",
    ];
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let word = |i: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let end = if i % 11 == 10 { "." } else { "" };
        format!("{}{end} ", WORDS[(state >> 16) as usize % WORDS.len()])
    };
    (0..words).map(word).collect()
}
