//! Objects whose header and directory checksums fit: whatever they say, cuts do not change the verdict.
#![no_main]

use kvasir_container::{ChunkHeader, ContainerError, HEADER_BYTES, Head, ObjectVerifier};
use kvasir_codec_fuzz as _;
use libfuzzer_sys::fuzz_target;

fn verify(object: &[u8], cut: usize) -> Result<Head, ContainerError> {
    let mut verifier = ObjectVerifier::new();
    for part in object.chunks(cut) {
        verifier.push(part)?;
    }
    verifier.finish()
}

/// Makes the checksums before the pieces fit.
fn seal(object: &mut [u8]) {
    let header_crc = |object: &mut [u8]| {
        let crc = crc32c::crc32c(&object[..252]);
        object[252..256].copy_from_slice(&crc.to_le_bytes());
    };
    header_crc(object);
    let Ok(header) = ChunkHeader::parse(object) else { return };
    let (head, tokens) = (header.head_bytes() as usize, header.tokens_bytes as usize);
    if let Some(tokens) = object.get(head - tokens..head) {
        let crc = crc32c::crc32c(tokens);
        object[172..176].copy_from_slice(&crc.to_le_bytes());
    }
    if let Some(directory) = object.get(HEADER_BYTES..head - tokens) {
        let crc = crc32c::crc32c(directory);
        object[168..172].copy_from_slice(&crc.to_le_bytes());
    }
    header_crc(object);
}

fuzz_target!(|data: &[u8]| {
    let mut object = data.to_vec();
    if object.len() >= HEADER_BYTES {
        object[..6].copy_from_slice(b"KVSC\x01\x01");
        seal(&mut object);
    }
    let verdict = verify(&object, object.len().max(1));
    assert_eq!(verdict, verify(&object, 61));
    if let Ok(head) = verdict {
        let total: u64 = head.pieces().map(|(_, _, entry)| entry.range.end - entry.range.start).sum();
        assert_eq!(head.header.head_bytes() + total, object.len() as u64);
        let _ = head.verify_chain();
    }
});
