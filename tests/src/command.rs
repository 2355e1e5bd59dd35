//! Runs a binary from outside: typed commands, their output, and errors for invalid input.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;

/// Exit codes, as `kvasir --help` lists them.
pub mod exit {
    /// See `kvasir --help`.
    pub const NOTHING: i32 = 1;
    /// See `kvasir --help`.
    pub const USAGE: i32 = 2;
    /// See `kvasir --help`.
    pub const CONFIG: i32 = 64;
    /// See `kvasir --help`.
    pub const DATA: i32 = 65;
    /// See `kvasir --help`.
    pub const NO_INPUT: i32 = 66;
    /// See `kvasir --help`.
    pub const UNAVAILABLE: i32 = 69;
    /// See `kvasir --help`.
    pub const NO_OUTPUT: i32 = 73;
    /// See `kvasir --help`.
    pub const REFUSED: i32 = 77;
}

/// A folder to run a binary in.
#[derive(Debug)]
pub struct Bench {
    binary: PathBuf,
    folder: TempDir,
}

impl Bench {
    /// An empty folder for `binary`.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self { binary: binary.into(), folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// The same folder's commands, with the binary `name` that cargo built next to this one.
    pub fn sibling(&self, name: &str) -> PathBuf {
        let path = self.binary.with_file_name(name);
        assert!(path.exists(), "{} is not built: cargo build -p kvasir-cli -p kvasir-lab", path.display());
        path
    }

    /// A place in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).expect("writable");
    }

    /// Reads a file.
    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Runs the binary with the words of `line`, in the folder, with a clean environment.
    pub fn run(&self, line: &str) -> Run {
        self.run_with(line, &[])
    }

    /// The same with additional variables.
    pub fn run_with(&self, line: &str, env: &[(&str, &str)]) -> Run {
        let output = self.command(&self.binary, line).envs(env.iter().copied()).output().expect("starts");
        Run { line: line.to_owned(), output }
    }

    /// Another binary in the folder.
    pub fn run_other(&self, binary: &Path, line: &str) -> Run {
        Run { line: line.to_owned(), output: self.command(binary, line).output().expect("starts") }
    }

    /// Runs a command that must work and returns its stdout.
    pub fn ok(&self, line: &str) -> String {
        self.run(line).succeeds()
    }

    /// A command in the folder, not started. The tests' own environment does not configure it.
    pub fn command(&self, binary: &Path, line: &str) -> Command {
        let mut command = Command::new(binary);
        command.args(line.split_whitespace()).current_dir(self.folder.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KVASIR_") || name.to_string_lossy().starts_with("AWS_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// The binary under test.
    pub fn binary(&self) -> &Path {
        &self.binary
    }
}

/// A finished command.
#[derive(Debug)]
pub struct Run {
    line: String,
    /// The result.
    pub output: Output,
}

impl Run {
    /// Its output on stdout.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// Its output on stderr.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// It works; returns its stdout.
    pub fn succeeds(self) -> String {
        assert!(self.output.status.success(), "kvasir {}:\n{}{}", self.line, self.stdout(), self.stderr());
        self.stdout()
    }

    /// Checks that the command fails with `code`, prints every one of `needles`, and does not panic.
    pub fn fails(self, code: i32, needles: &[&str]) {
        let stderr = self.stderr();
        assert_eq!(self.output.status.code(), Some(code), "kvasir {}:\n{stderr}", self.line);
        assert!(!stderr.contains("panicked"), "kvasir {}:\n{stderr}", self.line);
        for needle in needles {
            assert!(stderr.contains(needle), "kvasir {}: {needle:?} is not in\n{stderr}", self.line);
        }
    }
}

/// English without end, different for every seed: enough for a small model to have something to say about.
pub fn prose(seed: u32, words: usize) -> String {
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

/// A running `kvasir serve`.
#[derive(Debug)]
pub struct Served {
    child: Child,
    /// Its address.
    pub url: String,
}

impl Served {
    /// Starts `kvasir serve` over the folder, on a free port.
    pub fn start(bench: &Bench, kvasir: &Path) -> Self {
        Self::start_with(bench, kvasir, "")
    }

    /// With more flags.
    pub fn start_with(bench: &Bench, kvasir: &Path, flags: &str) -> Self {
        // Taken and given back: the service binds it at once; another test would have to be as quick.
        let port =
            TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).expect("a free port").port();
        let store = bench.path("store");
        let data = bench.path("data");
        std::fs::create_dir_all(&store).expect("a folder");
        let line = format!(
            "serve --listen 127.0.0.1:{port} --store.url file://{} --cache.directory {} {flags}",
            store.display(),
            data.display()
        );
        let mut child = bench.command(kvasir, &line).stderr(Stdio::piped()).spawn().expect("starts");
        let log = child.stderr.take().expect("piped");
        let ready = BufReader::new(log).lines().map_while(Result::ok).any(|line| line.contains("ready"));
        assert!(ready, "the service ends without being ready");
        Self { child, url: format!("http://127.0.0.1:{port}") }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses JSON.
pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}
