//! A file without a name, which the system deletes with the process.

use std::{io, ops::Range, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

use bytes::Bytes;
use tokio::task::{JoinHandle, spawn_blocking};

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
}

impl SpoolFile {
    pub(super) async fn create(directory: PathBuf) -> io::Result<Self> {
        let file = spawn_blocking(move || {
            std::fs::create_dir_all(&directory)?;
            tempfile::tempfile_in(&directory)
        });
        let file = Arc::new(file.await??);
        Ok(Self { file, buffer: Vec::with_capacity(BUFFER_BYTES), sent: 0, writing: None })
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
        let (file, at) = (Arc::clone(&self.file), self.sent);
        self.sent += full.len() as u64;
        self.writing = Some(spawn_blocking(move || {
            file.write_all_at(&full, at)?;
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
        let file = Arc::clone(&self.file);
        let read = spawn_blocking(move || {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            file.read_exact_at(&mut bytes, range.start).map(|()| Bytes::from(bytes))
        });
        read.await?
    }

    /// Writes over the beginning.
    pub(super) async fn overwrite_front(&self, bytes: Vec<u8>) -> io::Result<()> {
        let file = Arc::clone(&self.file);
        spawn_blocking(move || file.write_all_at(&bytes, 0)).await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_written_is_read_whatever_the_parts() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut file = SpoolFile::create(directory.path().join("new")).await.expect("creates");
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
        file.overwrite_front(vec![7; 9]).await.expect("writes");
        assert_eq!(file.read(8..10).await.expect("reads"), [7, bytes[9]][..]);
        assert!(file.read(699_999..700_001).await.is_err(), "there is no more");
    }
}
