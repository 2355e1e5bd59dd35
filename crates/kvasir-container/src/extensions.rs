//! Extensions: additions to the format by later writers, which earlier readers skip or reject.
//!
//! {`u16 kind`, `u8 flags`, `u8 reserved`, `u32 bytes`, data} one after the other, by ascending kind. Kind 1 is [`Measured`](crate::Measured); kinds 2 and
//! 3 are the key and the content of an opaque object.

use crate::{
    error::ContainerError,
    fields::{array, u16_at, u32_at, wide},
    limits::EXTENSION_ENTRY_BYTES,
};

/// Flag bit 0: a reader that does not know the kind must reject the object. The other bits are reserved.
const FLAG_REQUIRED: u8 = 1;

/// The key of an opaque object. A reader that does not know this kind cannot interpret the object.
pub(crate) const KIND_KEY: u16 = 2;
/// The hash of an opaque object's payload, and a value that distinguishes objects of the same key and payload.
pub(crate) const KIND_CONTENT: u16 = 3;

/// One extension of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// The kind.
    pub kind: u16,
    /// Whether a reader that does not know the kind refuses the object. This build knows none but those of opaque objects.
    pub required: bool,
    /// Its data.
    pub data: Vec<u8>,
}

/// Reads the extensions, whose length was checked; they begin at offset `at` of the object.
pub(crate) fn read(bytes: &[u8], at: usize) -> Result<Vec<Extension>, ContainerError> {
    let mut extensions: Vec<Extension> = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let offset = wide(at.saturating_add(bytes.len().saturating_sub(rest.len())));
        let field = |into: u64, field, rule, actual: u64| {
            let offset = offset.saturating_add(into);
            Err(ContainerError::Field { offset, field, rule, actual })
        };
        let Some((entry, after)) = rest.split_at_checked(EXTENSION_ENTRY_BYTES) else {
            return field(0, "extension", "must have 8 bytes before its data", wide(rest.len()));
        };
        let (kind, [flags, reserved], length) = (u16_at(entry, 0), array(entry, 2), u32_at(entry, 4));
        if extensions.last().is_some_and(|before| before.kind >= kind) {
            return field(0, "extension.kind", "must ascend", kind.into());
        }
        if flags & !FLAG_REQUIRED != 0 {
            return field(2, "extension.flags", "bits 1 to 7 are reserved", flags.into());
        }
        if reserved != 0 {
            return field(3, "extension.reserved", "must be 0", reserved.into());
        }
        let cut = usize::try_from(length).ok().and_then(|length| after.split_at_checked(length));
        let Some((data, after)) = cut else {
            return field(4, "extension.bytes", "must lie inside extension_bytes", length.into());
        };
        rest = after;
        let required = flags & FLAG_REQUIRED != 0;
        if required && kind != KIND_KEY && kind != KIND_CONTENT {
            return Err(ContainerError::Extension { kind });
        }
        extensions.push(Extension { kind, required, data: data.to_vec() });
    }
    Ok(extensions)
}

/// The bytes of an extension.
pub(crate) fn write(extension: &Extension, out: &mut Vec<u8>) {
    out.extend_from_slice(&extension.kind.to_le_bytes());
    out.extend_from_slice(&[u8::from(extension.required), 0]);
    // at most 64 KiB: the builder checked the sum
    out.extend_from_slice(&u32::try_from(extension.data.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&extension.data);
}
