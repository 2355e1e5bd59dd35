//! Files that are being written, and become visible as a whole.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path as FilePath, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use object_store::{Error, PutPayload, PutResult, Result};
use parking_lot::Mutex;

use crate::{
    file_folders::{Folders, create_file},
    limits,
};

/// Alignment of addresses, offsets and lengths of unbuffered writes: the longest sector in use.
pub(crate) const SECTOR_BYTES: usize = 4096;

/// A file under a unique name, `{name}#{number}`, which listings do not show. Deleted when dropped; the
/// collector deletes those of killed processes.
#[derive(Debug)]
pub(crate) struct StagedFile {
    folders: Arc<Folders>,
    place: PathBuf,
    staging: PathBuf,
    file: File,
    /// The same file, bypassing the page cache, if the file system supports it: opened for the first long write.
    /// The writer holds the buffer.
    unbuffered: OnceLock<Option<(File, Mutex<AlignedBuffer>)>>,
    /// Whether it has given up its staging name: from then on that may be another writer's.
    has_left: AtomicBool,
}

impl StagedFile {
    /// Begins the file that will be `place`.
    ///
    /// # Errors
    /// If the file system refuses it.
    pub(crate) fn create(folders: &Arc<Folders>, place: PathBuf) -> Result<Self> {
        let created = (|| {
            for number in 1u64.. {
                let mut staging = OsString::from(&place);
                staging.push(format!("#{number}"));
                let staging = PathBuf::from(staging);
                match create_file(&staging) {
                    Ok(file) => return Ok((staging, file)),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error),
                }
            }
            Err(io::ErrorKind::AlreadyExists.into())
        })();
        let (staging, file) = created.map_err(|error| failed("creating", &place, &error))?;
        let (folders, unbuffered, has_left) = (Arc::clone(folders), OnceLock::new(), AtomicBool::new(false));
        Ok(Self { folders, place, staging, file, unbuffered, has_left })
    }

    fn unbuffered(&self) -> Option<&(File, Mutex<AlignedBuffer>)> {
        let open = || {
            let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&self.staging);
            Some((file.ok()?, Mutex::default()))
        };
        self.unbuffered.get_or_init(open).as_ref()
    }

    /// Writes a payload from offset `at` on.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub(crate) fn write(&self, at: u64, payload: &PutPayload) -> Result<()> {
        self.try_write(at, payload).map_err(|error| failed("writing", &self.staging, &error))
    }

    fn try_write(&self, mut at: u64, payload: &PutPayload) -> io::Result<()> {
        let is_short = payload.content_length() < limits::STORE_UNBUFFERED_WRITE_BYTES_MIN;
        let is_buffered = is_short || !at.is_multiple_of(SECTOR_BYTES as u64);
        let unbuffered = if is_buffered { None } else { self.unbuffered() };
        let Some((unbuffered, buffer)) = unbuffered else {
            for part in payload {
                self.file.write_all_at(part, at)?;
                at += part.len() as u64;
            }
            return Ok(());
        };
        let mut buffer = buffer.lock();
        // A failed write may have left data.
        buffer.clear();
        for part in payload {
            let mut part = &part[..];
            while !part.is_empty() {
                let whole = part.len() / SECTOR_BYTES * SECTOR_BYTES;
                let is_aligned = part.as_ptr().addr().is_multiple_of(SECTOR_BYTES)
                    && whole >= limits::STORE_UNBUFFERED_WRITE_BYTES_MIN;
                // Short ones go together, long ones as they lie.
                if is_aligned && buffer.bytes().len().is_multiple_of(SECTOR_BYTES) {
                    self.write_sectors(unbuffered, buffer.bytes(), at)?;
                    at += buffer.bytes().len() as u64;
                    buffer.clear();
                    self.write_sectors(unbuffered, &part[..whole], at)?;
                    (at, part) = (at + whole as u64, &part[whole..]);
                    continue;
                }
                part = buffer.take(part);
                if buffer.is_full() {
                    self.write_sectors(unbuffered, buffer.bytes(), at)?;
                    at += buffer.bytes().len() as u64;
                    buffer.clear();
                }
            }
        }
        // The remainder does not fill a sector: no page of it may be written in both ways.
        let (whole, rest) = buffer.bytes().split_at(buffer.bytes().len() / SECTOR_BYTES * SECTOR_BYTES);
        self.write_sectors(unbuffered, whole, at)?;
        self.file.write_all_at(rest, at + whole.len() as u64)
    }

    /// Writes whole sectors past the page cache, or through it if the file system opens files this way but
    /// then refuses to write them.
    fn write_sectors(&self, unbuffered: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        match unbuffered.write_all_at(bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.file.write_all_at(bytes, at),
            written => written,
        }
    }

    /// Makes it durable under its own name.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if there is a file that it must not replace; and as [`create`](Self::create).
    pub(crate) fn publish(&self, replace: bool) -> Result<PutResult> {
        self.file.sync_all().map_err(|error| failed("writing", &self.staging, &error))?;
        let renamed = if replace {
            let renamed = fs::rename(&self.staging, &self.place);
            renamed.inspect(|()| self.has_left.store(true, Ordering::Relaxed))
        } else {
            fs::hard_link(&self.staging, &self.place).inspect(|()| self.leave())
        };
        named(&self.folders, &self.place, renamed.and_then(|()| self.folders.sync_above(&self.place)))
    }

    /// Gives up the staging name, if it has not.
    fn leave(&self) {
        if !self.has_left.swap(true, Ordering::Relaxed) {
            let _ = fs::remove_file(&self.staging);
        }
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Bytes to be written past the page cache that are not aligned; allocates on first use.
#[derive(Debug, Default)]
struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    filled: usize,
}

impl AlignedBuffer {
    /// Takes as much as fits, and returns the rest.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if self.memory.is_empty() {
            self.memory = vec![0; limits::STORE_UNBUFFERED_WRITE_BYTES + SECTOR_BYTES];
            self.start = self.memory.as_ptr().align_offset(SECTOR_BYTES);
        }
        let free = limits::STORE_UNBUFFERED_WRITE_BYTES - self.filled;
        let (now, later) = bytes.split_at(bytes.len().min(free));
        let at = self.start + self.filled;
        self.memory[at..at + now.len()].copy_from_slice(now);
        self.filled += now.len();
        later
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.filled]
    }

    fn is_full(&self) -> bool {
        self.filled == limits::STORE_UNBUFFERED_WRITE_BYTES
    }

    fn clear(&mut self) {
        self.filled = 0;
    }
}

/// The answer to a write, of which the last step gave a file its name.
///
/// # Errors
/// [`Error::AlreadyExists`] if the name is taken, durably; otherwise that the file system has failed.
pub(crate) fn named(folders: &Folders, place: &FilePath, outcome: io::Result<()>) -> Result<PutResult> {
    let Err(error) = outcome else {
        return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
    };
    if error.kind() != io::ErrorKind::AlreadyExists {
        return Err(failed("naming", place, &error));
    }
    // The answer must hold after a power failure, and the writer of what is there may not have come to that yet.
    match sync_named(folders, place) {
        Ok(()) | Err(Error::NotFound { .. }) => {
            let (path, source) = (place.display().to_string(), error.into());
            Err(Error::AlreadyExists { path, source })
        }
        Err(error) => Err(error),
    }
}

/// Makes the file at `place`, which another writer has named, durable.
///
/// # Errors
/// [`Error::NotFound`] if there is none; otherwise that the file system has failed.
pub(crate) fn sync_named(folders: &Folders, place: &FilePath) -> Result<()> {
    folders.sync_file(place).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Error::NotFound { path: place.display().to_string(), source: error.into() }
        }
        _ => failed("syncing", place, &error),
    })
}

/// An error of the file system, which a retry does not mend.
pub(crate) fn failed(what: &str, path: &FilePath, error: &io::Error) -> Error {
    let source = format!("{what} {}: {error}", path.display()).into();
    // As `object_store` names it: a directory refuses the same again.
    Error::Generic { store: "LocalFileSystem", source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer renames its file, and before it has ended, another one begins under the same staging name.
    #[test]
    fn a_writer_that_has_finished_leaves_the_files_of_others_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let folders = Arc::new(Folders::new(directory.path().to_owned()));
        for replace in [true, false] {
            let place = directory.path().join(format!("object-{replace}"));
            let create = || StagedFile::create(&folders, place.clone()).expect("creates");
            let first = create();
            first.write(0, &PutPayload::from_static(b"bytes")).expect("writes");
            first.publish(replace).expect("is named");
            let second = create();
            drop(first);
            let third = create();
            third.write(0, &PutPayload::from_static(b"by")).expect("writes");
            second.write(0, &PutPayload::from_static(b"bytes")).expect("writes");
            second.publish(true).expect("its file is there");
            drop(third);
            assert_eq!(fs::read(&place).expect("reads"), b"bytes");
        }
    }

    #[test]
    fn writers_that_need_the_same_new_folders_all_succeed() {
        let directory = tempfile::tempdir().expect("a directory");
        let folders = Arc::new(Folders::new(directory.path().to_owned()));
        for round in 0..20 {
            let folder = directory.path().join(format!("{round}/a/b/c"));
            let write = |writer: u8| {
                let staged = StagedFile::create(&folders, folder.join(writer.to_string()));
                staged.expect("creates").publish(true).expect("is named");
            };
            std::thread::scope(|threads| {
                for writer in 0..8 {
                    threads.spawn(move || write(writer));
                }
            });
            assert_eq!(fs::read_dir(&folder).expect("lists").count(), 8);
        }
    }
}
