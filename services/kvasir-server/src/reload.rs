//! Files that may change while the service runs: mounted secrets, certificates.

use std::{
    fmt,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::RwLock;

use crate::limits;

/// A value parsed from files, in its last usable state.
pub(crate) struct ReloadableFiles<T> {
    paths: Vec<PathBuf>,
    parse: Box<ParseFiles<T>>,
    current: RwLock<LoadedValue<T>>,
}

type ParseFiles<T> = dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync;

struct LoadedValue<T> {
    value: Arc<T>,
    /// Of the files' bytes. Modification times are unreliable on mounted secrets.
    hash: blake3::Hash,
    /// Hash of the files' present state if it is unusable, so that it is reported once.
    rejected: Option<blake3::Hash>,
}

impl<T: fmt::Debug> fmt::Debug for ReloadableFiles<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadableFiles").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl<T> ReloadableFiles<T> {
    /// Reads the files for the first time; `parse` gets their bytes in the order of `paths`.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub(crate) fn open(
        paths: &[&Path],
        parse: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
        let files = read_all(&paths)?;
        let current = LoadedValue { value: Arc::new(parse(&files)?), hash: hash(&files), rejected: None };
        Ok(Self { paths, parse: Box::new(parse), current: RwLock::new(current) })
    }

    pub(crate) fn get(&self) -> Arc<T> {
        Arc::clone(&self.current.read().value)
    }

    /// Whether the files have changed and cannot be used.
    pub(crate) fn is_rejected(&self) -> bool {
        self.current.read().rejected.is_some()
    }

    /// Reloads the files. An unusable state is reported, and the last good one stays in force.
    pub(crate) fn reload(&self) {
        self.reload_if(|_, _| Ok(()));
    }

    /// Like [`reload`](Self::reload), with a check of the transition: `may_follow` gets the new and the
    /// present value. Returns whether a new value is in force.
    pub(crate) fn reload_if(&self, may_follow: impl Fn(&T, &T) -> Result<(), String>) -> bool {
        let files = read_all(&self.paths);
        let hash = hash(files.as_deref().unwrap_or_default());
        {
            let current = self.current.read();
            if current.rejected.unwrap_or(current.hash) == hash {
                return false;
            }
        }
        let parsed = files.and_then(|files| (self.parse)(&files));
        let mut current = self.current.write();
        match parsed.and_then(|value| may_follow(&value, &current.value).map(|()| value)) {
            Ok(value) => {
                tracing::info!(paths = ?self.paths, "files reloaded");
                *current = LoadedValue { value: Arc::new(value), hash, rejected: None };
                true
            }
            Err(problem) => {
                tracing::error!(paths = ?self.paths, problem, "changed files cannot be used; the previous contents stay in force");
                current.rejected = Some(hash);
                false
            }
        }
    }
}

fn hash(files: &[Vec<u8>]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(&(file.len() as u64).to_le_bytes()).update(file);
    }
    hasher.finalize()
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    paths.iter().map(|path| read(path).map_err(|problem| format!("{} {problem}", path.display()))).collect()
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let file = std::fs::File::open(path).map_err(|e| format!("cannot be read: {e}"))?;
    let mut bytes = Vec::new();
    let limit = limits::RELOADED_BYTES_MAX;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    if bytes.len() as u64 > limit { Err(format!("is larger than {limit} bytes")) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_taken_in_and_a_broken_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("number");
        let parse = |files: &[Vec<u8>]| {
            std::str::from_utf8(&files[0])
                .ok()
                .and_then(|t| t.parse().ok())
                .ok_or_else(|| "no number".to_owned())
        };
        let write = |text: &str| std::fs::write(&path, text).expect("writes");
        assert!(ReloadableFiles::<u32>::open(&[&path], parse).is_err_and(|e| e.contains("cannot be read")));
        write("1");
        let number = ReloadableFiles::<u32>::open(&[&path], parse).expect("opens");
        let state = || (*number.get(), number.is_rejected());
        let mut seen = vec![state()];
        for text in ["2", "two", "2", "two", "3"] {
            write(text);
            number.reload();
            seen.push(state());
        }
        std::fs::remove_file(&path).expect("removes");
        number.reload();
        seen.push(state());
        assert_eq!(seen, [(1, false), (2, false), (2, true), (2, false), (2, true), (3, false), (3, true)]);
    }
}
