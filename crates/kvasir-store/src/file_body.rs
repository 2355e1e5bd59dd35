//! File bodies, read in parts large enough for a thread switch: `object_store` reads 8 KiB at a time, with a
//! blocking task for each.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use futures::{Stream, stream};
use object_store::{Error, Result};

use crate::{file_thread::blocking, limits};

/// The bytes of a range of a file, in order. A file that is shorter is an error.
pub(crate) fn parts(
    file: File,
    path: PathBuf,
    range: Range<u64>,
) -> impl Stream<Item = Result<Bytes>> + Send {
    let file = Arc::new(file);
    stream::try_unfold(range.start, move |at| {
        let (file, path, end) = (Arc::clone(&file), path.clone(), range.end);
        async move {
            let length = (end - at).min(limits::STORE_FILE_PART_BYTES);
            if length == 0 {
                return Ok(None);
            }
            let read = move || {
                let mut part = vec![0; length as usize];
                file.read_exact_at(&mut part, at).map(|()| Bytes::from(part))
            };
            let read = blocking(read).await.map_err(io::Error::other).flatten();
            match read {
                Ok(part) => Ok(Some((part, at + length))),
                Err(error) => Err(failed(&path, &error)),
            }
        }
    })
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let source = format!("cannot read {}: {error}", path.display()).into();
    Error::Generic { store: "LocalFileSystem", source }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;

    use super::*;

    #[tokio::test]
    async fn a_file_is_read_as_it_is_and_a_short_one_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("object");
        let bytes: Vec<u8> =
            (0..3 * limits::STORE_FILE_PART_BYTES + 5).map(|at| ((at * 31) >> 3) as u8).collect();
        std::fs::write(&path, &bytes).expect("writes");
        let read = async |range: Range<u64>| {
            let file = File::open(&path).expect("opens");
            parts(file, path.clone(), range).try_collect::<Vec<_>>().await
        };
        let end = bytes.len() as u64;
        for range in [0..end, 0..0, 7..limits::STORE_FILE_PART_BYTES + 9, end - 1..end, end..end] {
            let read = read(range.clone()).await.expect("is there").concat();
            assert!(read == bytes[range.start as usize..range.end as usize], "{range:?}");
        }
        let short = read(end - 3..end + 1).await.expect_err("is not there");
        assert!(short.to_string().contains("object"), "{short}");
    }
}
