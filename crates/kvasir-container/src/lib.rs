//! The chunk object: header, directory, checksums; no tensors.
