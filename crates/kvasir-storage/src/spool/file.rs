//! A file without a name, which the system deletes with the process.

use std::{io, ops::Range, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

use bytes::Bytes;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::seal::Sealer;

/// Bytes gathered before they go to the file; an upload has two such buffers.
const BUFFER_BYTES: usize = 128 << 10;

/// Written behind the upload: one buffer fills while the other is on its way to the disk.
#[derive(Debug)]
pub(super) struct SpoolFile {
    file: Arc<std::fs::File>,
    buffer: Vec<u8>,
    /// Bytes that went to the file, or are on their way.
    sent: u64,
    writing: Option<JoinHandle<io::Result<Vec<u8>>>>,
    /// Seals each buffer as it goes to the file, which is written once from front to end.
    seal: Option<Arc<Sealer>>,
    /// What stands in place of the file's first bytes.
    front: Vec<u8>,
}

impl SpoolFile {
    pub(super) async fn create(directory: PathBuf, sealed: bool) -> io::Result<Self> {
        let file = spawn_blocking(move || {
            std::fs::create_dir_all(&directory)?;
            tempfile::tempfile_in(&directory)
        });
        let file = Arc::new(file.await??);
        let (buffer, seal) = (Vec::with_capacity(BUFFER_BYTES), sealed.then(|| Arc::new(Sealer::random())));
        Ok(Self { file, buffer, sent: 0, writing: None, seal, front: Vec::new() })
    }

    /// Appends.
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = BUFFER_BYTES - self.buffer.len();
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == BUFFER_BYTES {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self) -> io::Result<()> {
        let spare = self.settled().await?;
        let full = std::mem::replace(&mut self.buffer, spare);
        let (file, at, seal) = (Arc::clone(&self.file), self.sent, self.seal.clone());
        self.sent += full.len() as u64;
        self.writing = Some(spawn_blocking(move || {
            match seal {
                None => file.write_all_at(&full, at)?,
                Some(seal) => {
                    let (number, place) = sealed_place(at);
                    file.write_all_at(&seal.seal(&number, &full), place)?;
                }
            }
            let mut empty = full;
            empty.clear();
            Ok(empty)
        }));
        Ok(())
    }

    /// Waits for the write under way, and gives its buffer back.
    async fn settled(&mut self) -> io::Result<Vec<u8>> {
        match self.writing.take() {
            Some(writing) => writing.await?,
            None => Ok(Vec::with_capacity(BUFFER_BYTES)),
        }
    }

    /// Waits until all that was written can be read, and lets the buffers go.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        self.settled().await?;
        self.buffer = Vec::new();
        Ok(())
    }

    /// Bytes of the file, which has them; [`flush`](Self::flush) comes before.
    pub(super) async fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        if range.end > self.sent {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (file, seal, sent) = (Arc::clone(&self.file), self.seal.clone(), self.sent);
        let front = self.front.get(range.start as usize..).unwrap_or_default().to_vec();
        let read = spawn_blocking(move || {
            let mut bytes = match seal {
                Some(seal) => open_range(&file, &seal, &range, sent)?,
                None => {
                    let mut bytes = vec![0; (range.end - range.start) as usize];
                    file.read_exact_at(&mut bytes, range.start)?;
                    bytes
                }
            };
            let covered = front.len().min(bytes.len());
            bytes[..covered].copy_from_slice(&front[..covered]);
            Ok(Bytes::from(bytes))
        });
        read.await?
    }

    /// Puts other bytes in place of the first ones. The file stays as it is: no part of it is sealed twice.
    pub(super) fn overwrite_front(&mut self, bytes: Vec<u8>) {
        self.front = bytes;
    }
}

/// The number of the buffer that begins at a plain offset, and where it lies in a sealed file.
fn sealed_place(at: u64) -> ([u8; 8], u64) {
    let number = at / BUFFER_BYTES as u64;
    (number.to_le_bytes(), number * (BUFFER_BYTES + Sealer::OVERHEAD) as u64)
}

/// A range of a sealed file of `sent` plain bytes: whole buffers are read and opened.
fn open_range(file: &std::fs::File, seal: &Sealer, range: &Range<u64>, sent: u64) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity((range.end - range.start) as usize);
    let mut at = range.start - range.start % BUFFER_BYTES as u64;
    while at < range.end {
        let plain = (sent - at).min(BUFFER_BYTES as u64);
        let (number, place) = sealed_place(at);
        let mut bytes = vec![0; plain as usize + Sealer::OVERHEAD];
        file.read_exact_at(&mut bytes, place)?;
        seal.open(&number, &mut bytes).ok_or(io::ErrorKind::InvalidData)?;
        let from = range.start.saturating_sub(at).min(plain) as usize;
        let to = (range.end - at).min(plain) as usize;
        out.extend_from_slice(&bytes[from..to]);
        at += BUFFER_BYTES as u64;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_written_is_read_whatever_the_parts() {
        for sealed in [false, true] {
            written_and_read(sealed).await;
        }
    }

    async fn written_and_read(sealed: bool) {
        let directory = tempfile::tempdir().expect("a directory");
        let mut file = SpoolFile::create(directory.path().join("new"), sealed).await.expect("creates");
        let bytes: Vec<u8> = (0..700_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let (mut at, mut step) = (0, 1);
        while at < bytes.len() {
            let end = (at + step).min(bytes.len());
            file.write(&bytes[at..end]).await.expect("writes");
            (at, step) = (end, step * 3 % 300_007);
        }
        file.flush().await.expect("flushes");
        assert!(file.read(0..700_000).await.expect("reads") == bytes);
        assert!(file.read(131_000..131_200).await.expect("reads") == bytes[131_000..131_200]);
        let mut raw = vec![0; 600_000];
        file.file.read_exact_at(&mut raw, 0).expect("reads");
        assert_eq!(raw.windows(32).any(|window| window == &bytes[1_000..1_032]), !sealed, "in the clear");
        file.overwrite_front(vec![7; 9]);
        assert_eq!(file.read(8..10).await.expect("reads"), [7, bytes[9]][..]);
        assert!(file.read(699_999..700_001).await.is_err(), "there is no more");
    }
}
