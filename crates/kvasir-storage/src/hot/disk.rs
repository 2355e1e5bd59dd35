//! Frames as files.
//!
//! ```text
//! {directory}/{tenant}/{xx}/{object: 32 hex}-{frame: 8 hex}-{bytes: 8 hex}-{level: 2 hex}
//!   bytes · CRC-32C of (object, frame, bytes), u32 LE
//! {directory}/{tenant}/{xx}/…-sealed
//!   bytes, sealed · tag 16 · number 8 · CRC-32C of (object, frame, all before), u32 LE
//! ```
//! Frames of tenants whose objects are sealed in the store are sealed here too, with a key that each process
//! generates and keeps only in memory: after a restart these frames cannot be read, and their files are
//! deleted.
//!
//! The name contains everything except the content, so start-up only lists folders. A file is created by a
//! rename, and is not synced: a crash may leave it torn or empty; its length or checksum is then wrong and it
//! is dropped.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use kvasir_store::seal::{KeyService, Sealer};
use kvasir_types::Name;
use parking_lot::Mutex;

use crate::{
    limits,
    memory::{Lease, Region},
    private_files::{private_directory, private_file},
};

use super::FrameKey;

const CRC_BYTES: usize = 4;

/// A frame file, as described by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FrameFile {
    pub(super) tenant: Name,
    pub(super) key: FrameKey,
    pub(super) bytes: u32,
    pub(super) level: u8,
}

impl FrameFile {
    fn path(&self, directory: &Path) -> PathBuf {
        let object: String = self.key.object.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{object}-{:08x}-{:08x}-{:02x}", self.key.frame, self.bytes, self.level);
        directory.join(self.tenant.as_str()).join(&object[..2]).join(name)
    }

    /// Like [`path`](Self::path), for a sealed frame.
    fn sealed_path(&self, directory: &Path) -> PathBuf {
        let mut path = self.path(directory).into_os_string();
        path.push("-sealed");
        path.into()
    }

    /// The associated data of a sealed frame.
    fn bound_to(&self) -> Vec<u8> {
        [self.tenant.as_str().as_bytes(), &self.key.object, &self.key.frame.to_le_bytes(), &[self.level]]
            .concat()
    }

    fn parse(tenant: &str, name: &str) -> Option<Self> {
        let mut parts = name.split('-');
        let (object, frame, bytes, level) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || object.len() != 32 || !object.is_ascii() {
            return None;
        }
        let mut key = FrameKey { object: [0; 16], frame: u32::from_str_radix(frame, 16).ok()? };
        for (index, byte) in key.object.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&object[2 * index..2 * index + 2], 16).ok()?;
        }
        let bytes = u32::from_str_radix(bytes, 16).ok()?;
        let file =
            Self { tenant: tenant.parse().ok()?, key, bytes, level: u8::from_str_radix(level, 16).ok()? };
        (u64::from(bytes) <= limits::HOT_FRAME_BYTES_MAX).then_some(file)
    }

    fn checksum(&self, content: &[u8]) -> u32 {
        let named = crc32c::crc32c_append(crc32c::crc32c(&self.key.object), &self.key.frame.to_le_bytes());
        crc32c::crc32c_append(named, content)
    }
}

/// The folder of frames. All calls block.
#[derive(Debug)]
pub(super) struct FrameFolder {
    directory: PathBuf,
    temporary: AtomicU64,
    keys: Option<Arc<dyn KeyService>>,
    /// With a key of this process only.
    seal: Sealer,
    /// One at a time: the sealed copy of a frame is not covered by the memory budget.
    sealing: Mutex<()>,
}

impl FrameFolder {
    /// Seals frames of tenants for which `keys` has a key.
    pub(super) fn new(directory: PathBuf, keys: Option<Arc<dyn KeyService>>) -> Self {
        Self {
            directory,
            temporary: AtomicU64::new(0),
            keys,
            seal: Sealer::random(),
            sealing: Mutex::new(()),
        }
    }

    /// Whether a tenant's frames are sealed.
    pub(super) fn seals(&self, tenant: &Name) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.current(tenant).is_some())
    }

    /// Lists the frames in order of names, and deletes files that are not frames.
    pub(super) fn scan(&self) -> io::Result<Vec<FrameFile>> {
        private_directory(&self.directory)?;
        let mut found = Vec::new();
        for tenant in fs::read_dir(&self.directory)? {
            let tenant = tenant?;
            if !tenant.file_type()?.is_dir() {
                continue;
            }
            let name = tenant.file_name();
            let Some(name) = name.to_str() else { continue };
            for shard in fs::read_dir(tenant.path())? {
                let shard = shard?;
                if shard.file_type()?.is_dir() {
                    Self::scan_shard(name, &shard.path(), &mut found)?;
                }
            }
        }
        // Frames kept before their tenant had a key are unsealed.
        found.retain(|file| {
            let stays = !self.seals(&file.tenant);
            if !stays {
                self.delete(file);
            }
            stays
        });
        found.sort_by_key(|file: &FrameFile| file.key);
        Ok(found)
    }

    fn scan_shard(tenant: &str, shard: &Path, found: &mut Vec<FrameFile>) -> io::Result<()> {
        for file in fs::read_dir(shard)? {
            let file = file?;
            match file.file_name().to_str().and_then(|name| FrameFile::parse(tenant, name)) {
                Some(frame) => found.push(frame),
                // Left by a crash, or a foreign file in our folder.
                None => {
                    let _ = fs::remove_file(file.path());
                }
            }
        }
        Ok(())
    }

    /// Writes a frame. It is visible as a whole or not at all, unless the machine crashes.
    pub(super) fn write(&self, file: &FrameFile, content: &[u8]) -> io::Result<()> {
        let is_sealed = self.seals(&file.tenant);
        let _turn = is_sealed.then(|| self.sealing.lock());
        let sealed = is_sealed.then(|| self.seal.seal(&file.bound_to(), content));
        let content = sealed.as_deref().unwrap_or(content);
        let path = if is_sealed { file.sealed_path(&self.directory) } else { file.path(&self.directory) };
        let folder = path.parent().expect("a frame's path has folders");
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!("{number:x}.tmp"));
        let write = || {
            use io::Write as _;
            let mut out = private_file(&temporary)?;
            out.write_all(content)?;
            out.write_all(&file.checksum(content).to_le_bytes())?;
            fs::rename(&temporary, &path)
        };
        let written = match write() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let tenant = folder.parent().expect("a frame's path has two folders");
                private_directory(&self.directory)?;
                private_directory(tenant)?;
                private_directory(folder)?;
                write()
            }
            written => written,
        };
        written.inspect_err(|_| drop(fs::remove_file(&temporary)))
    }

    /// Reads a frame into reserved memory; `None` if it is not complete.
    pub(super) fn read(&self, file: &FrameFile, lease: Option<Lease>) -> Option<Bytes> {
        let is_sealed = self.seals(&file.tenant);
        let path = if is_sealed { file.sealed_path(&self.directory) } else { file.path(&self.directory) };
        let mut from = fs::File::open(path).ok()?;
        let expected = file.bytes as usize + if is_sealed { Sealer::OVERHEAD } else { 0 };
        if from.metadata().ok()?.len() != (expected + CRC_BYTES) as u64 {
            return None;
        }
        let (mut content, mut stored) = (Region::new(expected, lease), [0; CRC_BYTES]);
        from.read_exact(&mut content).ok()?;
        from.read_exact(&mut stored).ok()?;
        if file.checksum(&content) != u32::from_le_bytes(stored) {
            return None;
        }
        if is_sealed {
            self.seal.open(&file.bound_to(), &mut content)?;
        }
        Some(content.freeze(file.bytes as usize))
    }

    pub(super) fn delete(&self, file: &FrameFile) {
        // It may never have been written: then there is nothing to delete.
        let _ = fs::remove_file(file.path(&self.directory));
        if self.keys.is_some() {
            let _ = fs::remove_file(file.sealed_path(&self.directory));
        }
    }
}

/// An accepted name must be that of its frame.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_name(name: &str) {
    if let Some(frame) = FrameFile::parse("acme", name) {
        let path = frame.path(Path::new(""));
        let again = path.file_name().and_then(|name| FrameFile::parse("acme", name.to_str()?));
        assert_eq!(again, Some(frame));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(frame: u32, bytes: u32) -> FrameFile {
        FrameFile {
            tenant: "acme".parse().unwrap(),
            key: FrameKey { object: [0xab; 16], frame },
            bytes,
            level: 1,
        }
    }

    #[test]
    fn frames_come_back_and_broken_ones_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let frames = FrameFolder::new(folder.path().join("hot"), None);
        assert_eq!(frames.scan().unwrap(), []);
        for frame in 0..4 {
            frames.write(&file(frame, 5), b"hello").unwrap();
        }
        assert_eq!(frames.read(&file(0, 5), None).unwrap(), "hello");
        let path = |frame| file(frame, 5).path(&folder.path().join("hot"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder.path().join("hot/acme")), mode(&path(0))), (0o700, 0o600));
        // Torn, bit-flipped, and another frame's bytes under this name.
        fs::write(path(0), b"hell").unwrap();
        let mut flipped = fs::read(path(1)).unwrap();
        flipped[0] ^= 1;
        fs::write(path(1), flipped).unwrap();
        fs::copy(path(3), path(2)).unwrap();
        assert!((0..3).all(|frame| frames.read(&file(frame, 5), None).is_none()));
        assert_eq!(frames.read(&file(3, 5), None).unwrap(), "hello");
        assert_eq!(frames.read(&file(9, 5), None), None);
    }

    #[test]
    fn frames_of_tenants_with_a_key_are_sealed_and_end_with_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let keys = format!("[[key]]\ntenant = \"acme\"\nid = \"one\"\nkey = \"{}\"\n", "01".repeat(32));
        let keys: Arc<dyn KeyService> = Arc::new(kvasir_store::seal::FileKeys::parse(&keys).unwrap());
        let open = FrameFolder::new(folder.path().to_owned(), None);
        let content = b"words that nobody else may read".repeat(40);
        let (first, second) = (file(1, content.len() as u32), file(2, content.len() as u32));
        open.write(&first, &content).unwrap();
        let sealed = FrameFolder::new(folder.path().to_owned(), Some(Arc::clone(&keys)));
        assert_eq!(sealed.scan().unwrap(), [], "what lay open is gone");
        for frame in [&first, &second] {
            sealed.write(frame, &content).unwrap();
            assert_eq!(sealed.read(frame, None).unwrap(), content);
        }
        let stored = fs::read(second.sealed_path(folder.path())).unwrap();
        assert!(!stored.windows(16).any(|window| window == &content[..16]));
        // Another frame's bytes under this name, with a valid checksum.
        let mut moved = fs::read(first.sealed_path(folder.path())).unwrap();
        moved.truncate(moved.len() - CRC_BYTES);
        let crc = second.checksum(&moved);
        moved.extend(crc.to_le_bytes());
        fs::write(second.sealed_path(folder.path()), moved).unwrap();
        assert_eq!(sealed.read(&second, None), None);
        let later = FrameFolder::new(folder.path().to_owned(), Some(keys));
        assert_eq!(later.read(&first, None), None, "the key went with its process");
        assert_eq!(later.scan().unwrap(), []);
        assert!(!first.sealed_path(folder.path()).exists());
    }

    #[test]
    fn a_scan_finds_frames_and_deletes_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let frames = FrameFolder::new(folder.path().to_owned(), None);
        frames.write(&file(7, 2), b"hi").unwrap();
        frames.write(&file(3, 2), b"hi").unwrap();
        let shard = folder.path().join("acme/ab");
        for junk in ["0.tmp", "zz", "ab-0-0-0", "abababababababababababababababab-00000001-ffffffff-00"] {
            fs::write(shard.join(junk), b"junk").unwrap();
        }
        fs::write(folder.path().join("a file"), b"").unwrap();
        assert_eq!(frames.scan().unwrap(), [file(3, 2), file(7, 2)]);
        assert_eq!(fs::read_dir(shard).unwrap().count(), 2);
    }
}
