//! Commands in documents, run as a reader would run them.
//!
//! Every fenced `console` or `sh` block of a Markdown file is preceded by a comment that says what CI does:
//!
//! | comment | meaning |
//! |---|---|
//! | `<!-- run -->` | run from the repository's root |
//! | `<!-- run in scratch -->` | run in an empty folder, shared by the blocks of one document |
//! | `<!-- run in background: HOST:PORT -->` | start in that folder, wait until the address answers, end with the document |
//! | `<!-- not run: REASON -->` | not run |
//!
//! A block without one is an error. In `console` blocks the lines that start with `$ ` are the commands. `kvasir` and
//! `kvasir-lab` are the unoptimised binaries that `cargo test --workspace` has built, and so are the program that
//! `cargo run --release` starts and the examples.

mod block;

use std::{
    fs,
    net::TcpStream,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use self::block::{Block, How};
use crate::files;

/// A service that a document starts answers within this time, or the document is wrong.
const START_MAX: Duration = Duration::from_secs(30);

/// A reader's cargo builds first: optimised, or with the features of one package alone. That would be minutes, so what
/// the tests have built runs instead.
const CARGO: &str = r#"cargo() {
    local built
    built=$(dirname "$(command -v kvasir)")
    case "$*" in
    "run --release -- "*) "$built/kvasir" "${@:4}" ;;
    "run --quiet -p "*" --example "*" -- "*)
        test -e "crates/$4/examples/$6.rs" || { echo "$4 has no example $6" >&2; return 1; }
        "$built/examples/$6" "${@:8}" ;;
    *) command cargo "$@" ;;
    esac
}
"#;

/// Lists every block and how CI treats it.
pub(crate) fn list(root: &Path) -> Result<()> {
    for (name, block) in blocks(root)? {
        println!("{name}:{}: {}", block.line, block.how);
        block.script.lines().for_each(|l| println!("    {l}"));
    }
    Ok(())
}

/// Runs every block that is marked as run; stops at the first failure.
pub(crate) fn run(root: &Path) -> Result<()> {
    build(root)?;
    list(root)?;
    let mut current = String::new();
    let mut background: Vec<Background> = Vec::new();
    for (name, block) in blocks(root)? {
        if name != current {
            background.clear();
            reset_scratch(root, &name)?;
            current.clone_from(&name);
        }
        let place = format!("{name}:{}", block.line);
        let scratch = scratch(root, &name);
        match &block.how {
            How::NotRun(_) => {}
            How::Root => execute(root, root, &block, &place)?,
            How::Scratch => execute(root, &scratch, &block, &place)?,
            How::Background(address) => {
                ensure!(
                    TcpStream::connect(address).is_err(),
                    "{place}: another process answers at {address}; end it"
                );
                let child = command(root, &scratch, &block.script).process_group(0).spawn()?;
                let mut process = Background(child);
                wait_for(address, &mut process.0).with_context(|| place.clone())?;
                background.push(process);
            }
        }
    }
    Ok(())
}

fn blocks(root: &Path) -> Result<Vec<(String, Block)>> {
    let mut all = Vec::new();
    for path in files(root, "md")? {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let found = block::parse(&fs::read_to_string(&path)?).with_context(|| name.clone())?;
        all.extend(found.into_iter().map(|b| (name.clone(), b)));
    }
    Ok(all)
}

/// Builds `kvasir` and `kvasir-lab`, the names that the documents use, with the features of the tests: nothing
/// is compiled again after them.
fn build(root: &Path) -> Result<()> {
    let build = ["test", "--quiet", "--workspace", "--no-run"];
    let status = Command::new("cargo").args(build).current_dir(root).status()?;
    ensure!(status.success(), "cargo {} failed", build.join(" "));
    Ok(())
}

fn scratch(root: &Path, name: &str) -> PathBuf {
    target(root).join("docs").join(name.replace(['/', '\\'], "_"))
}

fn target(root: &Path) -> PathBuf {
    // The same variable that cargo uses.
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn reset_scratch(root: &Path, name: &str) -> Result<()> {
    let folder = scratch(root, name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    // The documents themselves serve as text files, as for a reader in the repository's root.
    for document in fs::read_dir(root)?.filter_map(Result::ok).map(|e| e.path()) {
        if document.extension().is_some_and(|e| e == "md") {
            fs::copy(&document, folder.join(document.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

fn command(root: &Path, folder: &Path, script: &str) -> Command {
    let mut path = target(root).join("debug").into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c"]).arg(format!("{CARGO}{script}"));
    command.current_dir(folder).env("PATH", path);
    command
}

fn execute(root: &Path, folder: &Path, block: &Block, place: &str) -> Result<()> {
    println!("== {place}\n{}", block.script);
    let started = Instant::now();
    let status = command(root, folder, &block.script).status()?;
    ensure!(status.success(), "{place}: the commands failed ({status})");
    println!("== {place}: ok, {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn wait_for(address: &str, child: &mut Child) -> Result<()> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            bail!("the command that should answer at {address} ended ({status})");
        }
        if TcpStream::connect(address).is_ok() {
            return Ok(());
        }
        ensure!(started.elapsed() <= START_MAX, "no answer from {address} after {} s", START_MAX.as_secs());
        // The port is the only thing to wait for in another process.
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

/// A process that ends with its document.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        // The shell and its children are one process group. They may have ended already; then there is
        // nothing to do.
        let _ = Command::new("kill").args(["--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_answer_of_another_process_does_not_count() {
        let other = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = other.local_addr().expect("is bound").to_string();
        let mut child = Command::new("false").spawn().expect("starts");
        child.wait().expect("ends");
        assert!(wait_for(&address, &mut child).is_err());
    }
}
