//! Project tasks that need code; plain commands are in `.ci/run`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command line tool talks on stdout")]

mod docs;
mod tidy;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

const USAGE: &str = "usage: cargo xtask <command>
  golden        rewrite the codec's golden vectors after a change of the format
  tidy          check what no compiler checks: file lengths, READMEs, links, open points, tests that the threat model names
  docs          run the commands of the documents that are marked as run
  docs --list   only list which commands are run and which are not, with the reason";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = repository_root()?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["golden"] => golden(),
        ["tidy"] => tidy::check(&root),
        ["docs"] => docs::run(&root),
        ["docs", "--list"] => docs::list(&root),
        _ => bail!(USAGE),
    }
}

/// Rewrites the golden vectors by running the ignored tests that define them.
fn golden() -> Result<()> {
    let cargo = option_env!("CARGO").unwrap_or("cargo");
    let tests = ["test", "-p", "kvasir-codec", "--test", "golden", "--test", "profile_golden"];
    let only = ["--", "--ignored", "--exact", "regenerate"];
    let status = std::process::Command::new(cargo).args(tests).args(only).status();
    let status = status.context("cannot start cargo")?;
    ensure!(status.success(), "regenerating the golden vectors failed: {status}");
    Ok(())
}

fn repository_root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.ancestors().nth(2).context("xtask must be in crates/xtask")?.to_path_buf())
}

/// Files of the repository below `root` that end in `.{extension}`, sorted, without build output.
fn files(root: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && name != ".git" {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
