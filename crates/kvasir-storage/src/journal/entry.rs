//! What the journal's batches hold, and their bytes.
//!
//! ```text
//! batch   = "KVSJ" · version 3 · entry … · CRC32C of all before
//! entry   = kind 1 · tenant length 1 · tenant · length 4 · content
//! content = model_id 32 · key length 2 · key · value length 2 · value · extra length 2 · extra    of kinds 1 stored, 2 removed, 3 counted
//!         | a box of entries of that tenant                                                         of kind 4
//! ```
//! Key of a stored chunk is its `parent_hash`, value its index row, extra the first 8 bytes of each block's hash; of a
//! removed one they are `seq_hash · object_digest`, nothing, and the reason. A count has no model: key is `objects 8 ·
//! bytes 8`, value how far it reaches, `(length 1 · replica · batch 8)…`. Entries of unknown kinds are skipped.

use std::sync::Arc;

use bytes::Bytes;
use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};

use crate::{
    index::{IndexEntry, IndexRow},
    ledger::{Reach, Stored},
    removal::Removal,
};

const MAGIC: &[u8; 5] = b"KVSJ\x03";
/// The kind of a box.
const SEALED: u8 = 4;

/// Something that other replicas should know.
#[derive(Debug, Clone, PartialEq)]
pub enum JournalEntry {
    /// A chunk object is there.
    Stored {
        /// Whose.
        tenant: Name,
        /// The model.
        model_id: ModelId,
        /// What the index keeps of it.
        entry: Arc<IndexEntry>,
        /// The first 8 bytes of each block's hash: what routers are told.
        block_hashes: Vec<[u8; 8]>,
    },
    /// A chunk object is gone or going.
    Removed {
        /// Whose.
        tenant: Name,
        /// The model.
        model_id: ModelId,
        /// The chunk.
        seq_hash: SeqHash,
        /// The object.
        object_digest: ObjectDigest,
        /// Why.
        reason: Removal,
    },
    /// The collector has counted what a tenant has in the store.
    Counted {
        /// Whose.
        tenant: Name,
        /// What it has.
        stored: Stored,
        /// By replica, the last batch that is in it.
        reach: Reach,
    },
}

impl JournalEntry {
    /// Whose it is.
    pub(super) fn tenant(&self) -> &Name {
        match self {
            Self::Stored { tenant, .. } | Self::Removed { tenant, .. } | Self::Counted { tenant, .. } => {
                tenant
            }
        }
    }
}

/// What a batch holds.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Batch {
    /// In the clear, in their order.
    pub(super) entries: Vec<JournalEntry>,
    /// Boxes: whose, and what.
    pub(super) sealed: Vec<(Name, Bytes)>,
    /// Entries of kinds that this version does not know.
    pub(super) unknown: u64,
}

/// A batch as bytes.
pub(super) fn encode(batch: &Batch) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(encode_entries(&batch.entries));
    for (tenant, sealed) in &batch.sealed {
        frame(SEALED, tenant, sealed, &mut out);
    }
    let crc = crc32c::crc32c(&out);
    out.extend(crc.to_le_bytes());
    out
}

/// Entries as they are in a batch or a box.
pub(super) fn encode_entries<'a>(entries: impl IntoIterator<Item = &'a JournalEntry>) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        let (kind, model_id, fields) = match entry {
            JournalEntry::Stored { model_id, entry, block_hashes, .. } => {
                let fields = [entry.parent_hash.to_vec(), entry.row.to_bytes(), block_hashes.concat()];
                (1, model_id, fields)
            }
            JournalEntry::Removed { model_id, seq_hash, object_digest, reason, .. } => {
                let key = [&seq_hash.as_bytes()[..], object_digest.as_bytes()].concat();
                (2, model_id, [key, Vec::new(), reason.as_str().as_bytes().to_vec()])
            }
            JournalEntry::Counted { stored, reach, .. } => {
                let key = [stored.objects.to_le_bytes(), stored.bytes.to_le_bytes()].concat();
                (3, &ModelId::from([0; 32]), [key, encode_reach(reach), Vec::new()])
            }
        };
        // A key has at most 64 bytes, a value at most 300 or 400 · 137, an extra 8 · 1,024.
        let mut content = model_id.as_bytes().to_vec();
        for field in fields {
            content.extend((field.len() as u16).to_le_bytes());
            content.extend(field);
        }
        frame(kind, entry.tenant(), &content, &mut out);
    }
    out
}

fn frame(kind: u8, tenant: &Name, content: &[u8], out: &mut Vec<u8>) {
    // A name has at most 128 bytes; a batch is far below 4 GiB.
    out.extend([kind, tenant.as_str().len() as u8]);
    out.extend(tenant.as_str().as_bytes());
    out.extend((content.len() as u32).to_le_bytes());
    out.extend(content);
}

/// The content of a batch; `None` where its bytes are not those of one.
pub(super) fn decode(bytes: &Bytes) -> Option<Batch> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    decode_entries(body.strip_prefix(MAGIC)?)
}

/// What [`encode_entries`] gave, boxes with it.
pub(super) fn decode_entries(mut rest: &[u8]) -> Option<Batch> {
    let mut batch = Batch::default();
    while !rest.is_empty() {
        let ([kind, length], after) = rest.split_first_chunk()?;
        let (tenant, after) = after.split_at_checked(usize::from(*length))?;
        let (length, after) = after.split_first_chunk::<4>()?;
        let (content, after) = after.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        rest = after;
        let tenant: Name = str::from_utf8(tenant).ok()?.parse().ok()?;
        match kind {
            1..=3 => batch.entries.push(decode_entry(*kind, tenant, content)?),
            &SEALED => batch.sealed.push((tenant, Bytes::copy_from_slice(content))),
            _ => batch.unknown += 1,
        }
    }
    Some(batch)
}

fn decode_entry(kind: u8, tenant: Name, content: &[u8]) -> Option<JournalEntry> {
    let (model_id, rest) = content.split_first_chunk::<32>()?;
    let (key, rest) = field(rest)?;
    let (value, rest) = field(rest)?;
    let (extra, []) = field(rest)? else { return None };
    let model_id = ModelId::from(*model_id);
    Some(match kind {
        1 => {
            let (block_hashes, []) = extra.as_chunks::<8>() else { return None };
            let entry = IndexEntry {
                parent_hash: key.try_into().ok()?,
                blocks: IndexEntry::short_blocks(block_hashes.iter().map(|hash| &hash[..])),
                row: Arc::new(IndexRow::from_bytes(value)?),
            };
            let (entry, block_hashes) = (Arc::new(entry), block_hashes.to_vec());
            JournalEntry::Stored { tenant, model_id, entry, block_hashes }
        }
        2 => {
            let (seq, object) = key.split_first_chunk::<32>()?;
            let object: [u8; 32] = object.try_into().ok()?;
            let reason = Removal::parse(str::from_utf8(extra).ok()?)?;
            let (seq_hash, object_digest) = ((*seq).into(), object.into());
            JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason }
        }
        _ => {
            let (objects, bytes) = key.split_first_chunk::<8>()?;
            let (objects, bytes) = (u64::from_le_bytes(*objects), u64::from_le_bytes(bytes.try_into().ok()?));
            let stored = Stored { objects, bytes };
            JournalEntry::Counted { tenant, stored, reach: decode_reach(value)? }
        }
    })
}

fn encode_reach(reach: &[(Name, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (replica, n) in reach {
        out.push(replica.as_str().len() as u8);
        out.extend(replica.as_str().as_bytes());
        out.extend(n.to_le_bytes());
    }
    out
}

fn decode_reach(mut rest: &[u8]) -> Option<Reach> {
    let mut reach = Vec::new();
    while let Some((length, after)) = rest.split_first() {
        let (replica, after) = after.split_at_checked(usize::from(*length))?;
        let (n, after) = after.split_first_chunk::<8>()?;
        reach.push((str::from_utf8(replica).ok()?.parse().ok()?, u64::from_le_bytes(*n)));
        rest = after;
    }
    Some(reach.into())
}

fn field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::tests_support::any_entry as any_indexed;

    fn any_entry() -> impl Strategy<Value = JournalEntry> {
        let place = ("[a-z]{1,9}", any::<[u8; 32]>(), 0..3, any::<[u8; 32]>());
        let reach = prop::collection::vec(("[a-z0-9-]{1,36}", any::<u64>()), 0..4);
        (place, any_indexed(), reach).prop_map(|((tenant, model, kind, object), entry, reach)| {
            let (tenant, model_id) = (tenant.parse().expect("a name"), model.into());
            if kind == 0 {
                let stored = Stored { objects: entry.row.object_bytes, bytes: entry.row.first_position };
                let reach = reach.iter().map(|(name, n)| (name.parse().expect("a name"), *n)).collect();
                JournalEntry::Counted { tenant, stored, reach }
            } else if kind == 1 {
                let whole = |short: &[u8]| {
                    let mut hash = [1, 2, 3, 4, 5, 6, 7, 8];
                    hash[..short.len()].copy_from_slice(short);
                    hash
                };
                let block_hashes: Vec<[u8; 8]> = entry.blocks.iter().map(|b| whole(b)).collect();
                JournalEntry::Stored { tenant, model_id, entry: Arc::new(entry), block_hashes }
            } else {
                let reason = Removal::ALL[usize::from(object[0]) % Removal::ALL.len()];
                let (seq_hash, object_digest) = (entry.row.seq_hash, object.into());
                JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason }
            }
        })
    }

    proptest! {
        #[test]
        fn batches_round_trip_and_damage_is_noticed(
            entries in prop::collection::vec(any_entry(), 0..8),
            sealed in prop::collection::vec(("[a-z]{1,9}", prop::collection::vec(any::<u8>(), 0..60)), 0..3),
            at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let sealed = sealed.into_iter().map(|(tenant, bytes)| (tenant.parse().expect("a name"), bytes.into()));
            let batch = Batch { entries, sealed: sealed.collect(), unknown: 0 };
            let bytes = encode(&batch);
            prop_assert_eq!(decode(&bytes.clone().into()), Some(batch));
            let mut flipped = bytes.clone();
            flipped[at.index(bytes.len())] ^= 1u8 << bit;
            prop_assert_eq!(decode(&flipped.into()), None);
            prop_assert_eq!(decode(&bytes[..at.index(bytes.len())].to_vec().into()), None);
        }
    }

    #[test]
    fn unknown_kinds_are_skipped_and_counted() {
        let tenant: Name = "a".parse().expect("a name");
        let mut bytes = Vec::new();
        frame(77, &tenant, b"of a later version", &mut bytes);
        frame(SEALED, &tenant, b"box", &mut bytes);
        let batch = decode_entries(&bytes).expect("reads");
        assert_eq!((batch.unknown, batch.sealed.len(), batch.entries.len()), (1, 1, 0));
        assert_eq!(decode_entries(&bytes[..bytes.len() - 1]), None);
    }
}
