//! Fixed-width integers, packed.

/// Packs values of `width` bits (at most 16), least significant bit first.
pub(crate) fn pack(values: impl Iterator<Item = u16>, width: u32, out: &mut Vec<u8>) {
    let (mut held, mut count) = (0u32, 0);
    for value in values {
        held |= u32::from(value) << count;
        count += width;
        while count >= 8 {
            out.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    }
    if count > 0 {
        out.push(held as u8);
    }
}

/// Bytes that [`pack`] writes.
pub(crate) fn packed_bytes(values: usize, width: u32) -> usize {
    (values * width as usize).div_ceil(8)
}

/// The inverse of [`pack`]; missing bytes read as zeros.
pub(crate) fn unpack(bytes: &[u8], width: u32) -> impl Iterator<Item = u16> + '_ {
    let (mut held, mut count, mut bytes) = (0u32, 0, bytes.iter());
    std::iter::from_fn(move || {
        while count < width {
            held |= u32::from(*bytes.next()?) << count;
            count += 8;
        }
        let value = held & ((1 << width) - 1);
        held >>= width;
        count -= width;
        Some(value as u16)
    })
}
