//! Orphaned staging files that killed writers leave in a directory store.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Files that were being written when their writer ended: `{name}#{number}`, last written before `age`.
fn find(directory: &Path, age: Duration, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            find(&entry.path(), age, found)?;
            continue;
        }
        let name = entry.file_name();
        let is_staged = name.to_str().and_then(|name| name.rsplit_once('#')).is_some_and(|(base, number)| {
            !base.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
        });
        if !kind.is_file() || !is_staged {
            continue;
        }
        // If the clock was set back, files seem to be from the future: leave them.
        let written = entry.metadata().and_then(|meta| meta.modified());
        let is_old = written
            .is_ok_and(|written| SystemTime::now().duration_since(written).is_ok_and(|since| since >= age));
        if is_old {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// Deletes staging files in `directory` that were not written to for `age`; only counts them in a dry run.
///
/// # Errors
/// If the directory cannot be walked. Files that disappear in the meantime are ignored.
pub(super) fn sweep(directory: &Path, age: Duration, dry_run: bool) -> std::io::Result<u64> {
    let mut found = Vec::new();
    find(directory, age, &mut found)?;
    let gone = found.iter().filter(|path| dry_run || std::fs::remove_file(path).is_ok());
    Ok(gone.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_staging_files_go() {
        let directory = tempfile::tempdir().expect("a directory");
        let deep = directory.path().join("a/b");
        std::fs::create_dir_all(&deep).expect("a folder");
        for name in ["x.kvc", "x.kvc#1", "y.kvc#12", "z#", "#1", "v#1a"] {
            std::fs::write(deep.join(name), "bytes").expect("writes");
        }
        assert_eq!(sweep(directory.path(), Duration::from_secs(3600), false).expect("walks"), 0);
        assert_eq!(sweep(directory.path(), Duration::ZERO, true).expect("walks"), 2);
        assert_eq!(sweep(directory.path(), Duration::ZERO, false).expect("walks"), 2);
        let left = std::fs::read_dir(&deep).expect("lists").count();
        assert_eq!(left, 4);
    }
}
