//! The stored form of a page (FORMAT.md §11): a head with the layout, a checksum of key and bytes, and the
//! values, exact or as a chunk.
//!
//! The values are ordered by layer, plane, head and token, regardless of the order of axes in the engine's
//! memory: writers and readers may differ in it.

use kvasir_types::ObjectKey;

use super::{PageError, PageLayout};

const MAGIC: [u8; 7] = *b"kvpage\0";
const EXACT: u8 = 0;
const LOSSY: u8 = 1;
/// Magic and form, the layout, the checksum.
const HEAD_BYTES: usize = 8 + 6 * 4 + 4;
const CHECKSUM_AT: usize = HEAD_BYTES - 4;
/// Sign and exponent compress at any level; higher levels gain less than a hundredth.
const ZSTD_LEVEL: i32 = 1;

/// The values of a stored page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body<'a> {
    /// Bit for bit: for each byte of an element, highest first, a u32 length and these bytes of all elements,
    /// as a zstd frame or, if that is not shorter, uncompressed.
    Exact(&'a [u8]),
    /// The first bytes of a chunk object, as far as one of its levels needs.
    Lossy(&'a [u8]),
}

/// The stored bytes of a page.
pub(super) fn seal(key: &ObjectKey, layout: &PageLayout, body: Body<'_>) -> Vec<u8> {
    let (form, body) = match body {
        Body::Exact(body) => (EXACT, body),
        Body::Lossy(body) => (LOSSY, body),
    };
    let mut stored = Vec::with_capacity(HEAD_BYTES + body.len());
    stored.extend_from_slice(&MAGIC);
    stored.push(form);
    stored.extend(layout.identity().iter().flat_map(|field| field.to_le_bytes()));
    let checksum = checksum(key, &stored, body);
    stored.extend_from_slice(&checksum.to_le_bytes());
    stored.extend_from_slice(body);
    stored
}

/// The values of a page's stored bytes.
///
/// # Errors
/// [`PageError::NoPage`], [`PageError::Damaged`], [`PageError::OtherLayout`].
pub(super) fn open<'a>(
    key: &ObjectKey,
    layout: &PageLayout,
    stored: &'a [u8],
) -> Result<Body<'a>, PageError> {
    let (Some(head), Some(checksummed), Some(body)) =
        (stored.get(..CHECKSUM_AT), stored.get(CHECKSUM_AT..HEAD_BYTES), stored.get(HEAD_BYTES..))
    else {
        return Err(PageError::NoPage);
    };
    let (magic, rest) = head.split_at(MAGIC.len());
    let (form, identity) = rest.split_at(1);
    if magic != MAGIC {
        return Err(PageError::NoPage);
    }
    if checksummed != checksum(key, head, body).to_le_bytes() {
        return Err(PageError::Damaged);
    }
    let fields = identity.as_chunks::<4>().0.iter().map(|field| u32::from_le_bytes(*field));
    if !fields.eq(layout.identity()) {
        return Err(PageError::OtherLayout);
    }
    match form {
        [EXACT] => Ok(Body::Exact(body)),
        [LOSSY] => Ok(Body::Lossy(body)),
        _ => Err(PageError::NoPage),
    }
}

/// CRC-32C of the key and the bytes. It detects changes in transit and bytes under another key.
fn checksum(key: &ObjectKey, head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(key.as_str().as_bytes()), head), body)
}

/// The exact body of a page of the right size.
pub(super) fn exact(layout: &PageLayout, page: &[u8]) -> Vec<u8> {
    let item = layout.dtype().bytes();
    let mut bytes = vec![Vec::with_capacity(layout.elements()); item];
    layout.for_each_element(|at| {
        bytes.iter_mut().zip(&page[at..at + item]).for_each(|(bytes, byte)| bytes.push(*byte));
    });
    let mut body = Vec::with_capacity(page.len());
    for plain in bytes.iter().rev() {
        let packed = zstd::bulk::compress(plain, ZSTD_LEVEL).ok().filter(|packed| packed.len() < plain.len());
        let bytes = packed.as_ref().unwrap_or(plain);
        body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        body.extend_from_slice(bytes);
    }
    body
}

/// Fills a page of the right size from its exact body.
///
/// # Errors
/// [`PageError::Malformed`].
pub(super) fn fill(layout: &PageLayout, mut body: &[u8], page: &mut [u8]) -> Result<(), PageError> {
    let elements = layout.elements();
    for byte in (0..layout.dtype().bytes()).rev() {
        let (length, rest) = body.split_first_chunk::<4>().ok_or(PageError::Malformed)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| PageError::Malformed)?;
        let (bytes, behind) = rest.split_at_checked(length).ok_or(PageError::Malformed)?;
        body = behind;
        let unpacked;
        let plain = if length == elements {
            bytes
        } else {
            unpacked = zstd::bulk::decompress(bytes, elements).map_err(|_| PageError::Malformed)?;
            &unpacked
        };
        if plain.len() != elements {
            return Err(PageError::Malformed);
        }
        let mut plain = plain.iter();
        layout.for_each_element(|at| {
            if let (Some(to), Some(from)) = (page.get_mut(at + byte), plain.next()) {
                *to = *from;
            }
        });
    }
    if body.is_empty() { Ok(()) } else { Err(PageError::Malformed) }
}
