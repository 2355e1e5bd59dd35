//! An unnamed file, which the system deletes with the process.

use std::{io, ops::Range, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

use kvasir_store::seal::Sealer;
use tokio::task::JoinHandle;

use crate::{
    blocking::blocking,
    limits,
    memory::{Lease, Region},
    private_files::unnamed_private_file,
};

/// Written asynchronously: one buffer fills while the other is being written.
#[derive(Debug)]
pub(super) struct SpoolFile {
    file: Arc<std::fs::File>,
    buffer: Vec<u8>,
    /// Size of a write buffer; there are two.
    buffer_bytes: usize,
    /// Their memory lease, unless they are short.
    lease: Option<Lease>,
    /// Bytes written to the file, or being written.
    sent: u64,
    writing: Option<JoinHandle<io::Result<Vec<u8>>>>,
    /// Seals each buffer on its way to the file, which is written once, from start to end.
    seal: Option<Arc<Sealer>>,
    /// Replacement of the file's first bytes.
    prefix: Vec<u8>,
}

impl SpoolFile {
    /// A new file; without a lease for long buffers it has short ones.
    pub(super) async fn create(directory: PathBuf, sealed: bool, lease: Option<Lease>) -> io::Result<Self> {
        let file = Arc::new(blocking(move || unnamed_private_file(&directory)).await??);
        let is_paid = lease.is_some();
        let buffer_bytes =
            if is_paid { limits::SPOOL_BUFFER_BYTES } else { limits::SPOOL_BUFFER_SHORT_BYTES };
        let (buffer, seal) = (Vec::with_capacity(buffer_bytes), sealed.then(|| Arc::new(Sealer::random())));
        Ok(Self { file, buffer, buffer_bytes, lease, sent: 0, writing: None, seal, prefix: Vec::new() })
    }

    /// Appends.
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let free = self.buffer_bytes - self.buffer.len();
            let (now, later) = bytes.split_at(bytes.len().min(free));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == self.buffer_bytes {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self) -> io::Result<()> {
        let spare = self.settled().await?;
        let full = std::mem::replace(&mut self.buffer, spare);
        let (file, at, seal) = (Arc::clone(&self.file), self.sent, self.seal.clone());
        let buffer_bytes = self.buffer_bytes;
        self.sent += full.len() as u64;
        self.writing = Some(blocking(move || {
            match seal {
                None => file.write_all_at(&full, at)?,
                Some(seal) => {
                    let (number, place) = sealed_place(at, buffer_bytes);
                    file.write_all_at(&seal.seal(&number, &full), place)?;
                }
            }
            let mut empty = full;
            empty.clear();
            Ok(empty)
        }));
        Ok(())
    }

    /// Waits for the running write, and returns its buffer.
    async fn settled(&mut self) -> io::Result<Vec<u8>> {
        match self.writing.take() {
            Some(writing) => writing.await?,
            None => Ok(Vec::with_capacity(self.buffer_bytes)),
        }
    }

    /// Waits until everything written can be read, and frees the buffers.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        if self.writing.is_some() {
            self.settled().await?;
        }
        self.buffer = Vec::new();
        self.lease = None;
        Ok(())
    }

    /// Fills `space` with the bytes from `start` on; call [`flush`](Self::flush) first.
    pub(super) async fn fill(&self, start: u64, mut space: Region) -> io::Result<Region> {
        let range = start..start + space.len() as u64;
        if range.end > self.sent {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (file, seal, sent) = (Arc::clone(&self.file), self.seal.clone(), self.sent);
        let (prefix, buffer_bytes) =
            (self.prefix.get(start as usize..).unwrap_or_default().to_vec(), self.buffer_bytes);
        let read = blocking(move || {
            match seal {
                Some(seal) => open_range(&file, &seal, &range, sent, buffer_bytes, &mut space)?,
                None => file.read_exact_at(&mut space, range.start)?,
            }
            let covered = prefix.len().min(space.len());
            space[..covered].copy_from_slice(&prefix[..covered]);
            Ok(space)
        });
        read.await?
    }

    /// Replaces the first bytes. The file itself is unchanged: no part of it is sealed twice.
    pub(super) fn overwrite_prefix(&mut self, bytes: Vec<u8>) {
        match self.prefix.get_mut(..bytes.len()) {
            Some(before) => before.copy_from_slice(&bytes),
            None => self.prefix = bytes,
        }
    }
}

/// The number of the buffer that begins at a plain offset, and its position in a sealed file.
fn sealed_place(at: u64, buffer_bytes: usize) -> ([u8; 8], u64) {
    let number = at / buffer_bytes as u64;
    (number.to_le_bytes(), number * (buffer_bytes + Sealer::OVERHEAD) as u64)
}

/// A range of a sealed file of `sent` plain bytes: whole buffers are read and opened.
fn open_range(
    file: &std::fs::File,
    seal: &Sealer,
    range: &Range<u64>,
    sent: u64,
    buffer_bytes: usize,
    mut space: &mut [u8],
) -> io::Result<()> {
    let mut at = range.start - range.start % buffer_bytes as u64;
    let mut sealed = Vec::new();
    while at < range.end {
        let plain = (sent - at).min(buffer_bytes as u64);
        let (number, place) = sealed_place(at, buffer_bytes);
        sealed.resize(plain as usize + Sealer::OVERHEAD, 0);
        file.read_exact_at(&mut sealed, place)?;
        let bytes = seal.open(&number, &mut sealed).ok_or(io::ErrorKind::InvalidData)?;
        let from = range.start.saturating_sub(at).min(plain) as usize;
        let to = (range.end - at).min(plain) as usize;
        let (now, later) = space.split_at_mut(to - from);
        now.copy_from_slice(&bytes[from..to]);
        space = later;
        at += buffer_bytes as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBudget;

    #[tokio::test]
    async fn what_was_written_is_read_whatever_the_parts() {
        let budget = MemoryBudget::new(2 * limits::SPOOL_BUFFER_BYTES as u64);
        for sealed in [false, true] {
            for lease in [None, budget.lease(budget.total())] {
                written_and_read(sealed, lease).await;
            }
        }
        assert_eq!(budget.used(), 0);
    }

    async fn read(file: &SpoolFile, range: Range<u64>) -> io::Result<Vec<u8>> {
        let space = Region::new((range.end - range.start) as usize, None);
        Ok(file.fill(range.start, space).await?.to_vec())
    }

    async fn written_and_read(sealed: bool, lease: Option<Lease>) {
        let directory = tempfile::tempdir().expect("a directory");
        let created = SpoolFile::create(directory.path().join("new"), sealed, lease).await;
        let mut file = created.expect("creates");
        let bytes: Vec<u8> = (0..700_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let (mut at, mut step) = (0, 1);
        while at < bytes.len() {
            let end = (at + step).min(bytes.len());
            file.write(&bytes[at..end]).await.expect("writes");
            (at, step) = (end, step * 3 % 300_007);
        }
        file.flush().await.expect("flushes");
        assert!(read(&file, 0..700_000).await.expect("reads") == bytes);
        assert!(read(&file, 131_000..131_200).await.expect("reads") == bytes[131_000..131_200]);
        let mut raw = vec![0; 600_000];
        file.file.read_exact_at(&mut raw, 0).expect("reads");
        assert_eq!(raw.windows(32).any(|window| window == &bytes[1_000..1_032]), !sealed, "in the clear");
        file.overwrite_prefix(vec![7; 9]);
        assert_eq!(read(&file, 8..10).await.expect("reads"), [7, bytes[9]]);
        file.overwrite_prefix(vec![8; 2]);
        assert_eq!(read(&file, 1..3).await.expect("reads"), [8, 7], "what was put behind it stays");
        assert!(read(&file, 699_999..700_001).await.is_err(), "there is no more");
    }
}
