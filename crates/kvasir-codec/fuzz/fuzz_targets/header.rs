//! Any 256 bytes, with the checksum made to fit: fields out of their limits are errors.
#![no_main]

use kvasir_container::{ChunkHeader, HEAD_BYTES_MAX, HEADER_BYTES};
use kvasir_codec_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = ChunkHeader::parse(data);
    let mut header = data.to_vec();
    if header.len() >= HEADER_BYTES {
        header[..6].copy_from_slice(b"KVSC\x01\x01");
        let crc = crc32c::crc32c(&header[..252]);
        header[252..256].copy_from_slice(&crc.to_le_bytes());
        if let Ok(header) = ChunkHeader::parse(&header) {
            assert!(header.head_bytes() <= HEAD_BYTES_MAX as u64, "heads are bounded");
            assert!(header.head_bytes() <= header.object_bytes());
        }
    }
});
