//! The contents of the journal's batches, and their encoding.
//!
//! ```text
//! batch = "KVSJ" · version 3 · entry … · CRC32C of all before
//! entry = kind 1 · length of the rest 4 · tenant length 1 · tenant · content
//! content = model_id 32 · field …                 of kinds 1 stored, 2 removed, 3 counted
//!         | a box of entries of that tenant       of kind 5
//! field = length 2 · bytes
//! ```
//! Fields of a stored chunk: its `parent_hash`, its index row, the first 8 bytes of each block's hash, its namespace or
//! nothing, since when it was there (the store's ms 8) or nothing. Of a removed one: `seq_hash · object_digest`, the
//! reason. A count has no model; its fields are `objects 8 · bytes 8`, how far it reaches into journals, `(length 1 ·
//! replica · batch 8)…`, and before when it includes everything (the store's ms 8) or nothing.
//!
//! A newer version may write more. A reader skips and counts entries of unknown kinds, and chunks whose row
//! has another form (lookups find them in the store); it skips fields after those that it knows. It never
//! skips a removal: an unknown reason counts as a request's, and a removal without its key makes the batch
//! damaged.

use std::sync::Arc;

use bytes::Bytes;
use kvasir_store::layout::JournalLog;
use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};

use crate::{
    changes::ledger::{Reach, Stored},
    index::{IndexEntry, IndexRow},
    removal::Removal,
};

const MAGIC: &[u8; 5] = b"KVSJ\x03";
/// Entry kind of a removal.
const REMOVED: u8 = 2;
/// Entry kind of a box.
const SEALED: u8 = 5;

/// A change that other replicas should know.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum JournalEntry {
    /// A chunk object was stored.
    Stored {
        /// The tenant.
        tenant: Name,
        /// The model.
        model_id: ModelId,
        /// Its data for the index.
        entry: Arc<IndexEntry>,
        /// The first 8 bytes of each block's hash, for routers.
        block_hashes: Vec<[u8; 8]>,
        /// The namespace that its writer named, or that of its parent chunk.
        namespace: Option<Name>,
        /// The store's time in ms at which the object existed, before its tombstone was checked. `None` if
        /// the writer did not record it.
        since_ms: Option<i64>,
    },
    /// A chunk object was removed.
    Removed {
        /// The tenant.
        tenant: Name,
        /// The model.
        model_id: ModelId,
        /// The chunk.
        seq_hash: SeqHash,
        /// The object.
        object_digest: ObjectDigest,
        /// The reason.
        reason: Removal,
    },
    /// A tenant's usage of the store, as the collector or the replica that keeps accounts counted it.
    Counted {
        /// The tenant.
        tenant: Name,
        /// Its usage.
        stored: Stored,
        /// How far the count reaches.
        reach: Reach,
    },
}

impl JournalEntry {
    /// The tenant of the entry.
    pub(super) fn tenant(&self) -> &Name {
        match self {
            Self::Stored { tenant, .. } | Self::Removed { tenant, .. } | Self::Counted { tenant, .. } => {
                tenant
            }
        }
    }

    /// The log that it belongs to.
    pub(super) fn log(&self) -> JournalLog {
        match self {
            Self::Removed { .. } => JournalLog::Removed,
            Self::Stored { .. } => JournalLog::Stored,
            Self::Counted { .. } => JournalLog::Counted,
        }
    }
}

/// The contents of a batch.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Batch {
    /// Unsealed entries, in order.
    pub(super) entries: Vec<JournalEntry>,
    /// Boxes: tenant and contents.
    pub(super) sealed: Vec<(Name, Bytes)>,
    /// Entries of kinds that this version does not know.
    pub(super) unknown: u64,
}

/// Encodes a batch.
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

/// Encodes entries as in a batch or a box.
pub(super) fn encode_entries<'a>(entries: impl IntoIterator<Item = &'a JournalEntry>) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        let (kind, model_id, fields) = match entry {
            JournalEntry::Stored { model_id, entry, block_hashes, namespace, since_ms, .. } => {
                let namespace = namespace.as_ref().map_or("", Name::as_str).as_bytes().to_vec();
                let since = since_ms.map_or_else(Vec::new, |ms| ms.to_le_bytes().to_vec());
                let (parent, row) = (entry.parent_hash.to_vec(), entry.row.to_bytes());
                (1, model_id, vec![parent, row, block_hashes.concat(), namespace, since])
            }
            JournalEntry::Removed { model_id, seq_hash, object_digest, reason, .. } => {
                let key = [&seq_hash.as_bytes()[..], object_digest.as_bytes()].concat();
                (REMOVED, model_id, vec![key, reason.as_str().as_bytes().to_vec()])
            }
            JournalEntry::Counted { stored, reach, .. } => {
                let key = [stored.objects.to_le_bytes(), stored.bytes.to_le_bytes()].concat();
                let [until, listed] = [reach.until_ms, reach.listed_ms]
                    .map(|ms| ms.map_or_else(Vec::new, |ms| ms.to_le_bytes().to_vec()));
                (3, &ModelId::from([0; 32]), vec![key, encode_batches(&reach.batches), until, listed])
            }
        };
        let mut content = model_id.as_bytes().to_vec();
        for field in fields {
            // A field has at most 8 · 1,024 bytes.
            content.extend((field.len() as u16).to_le_bytes());
            content.extend(field);
        }
        frame(kind, entry.tenant(), &content, &mut out);
    }
    out
}

fn frame(kind: u8, tenant: &Name, content: &[u8], out: &mut Vec<u8>) {
    // A name has at most 128 bytes; a batch is far below 4 GiB.
    out.push(kind);
    out.extend(((1 + tenant.as_str().len() + content.len()) as u32).to_le_bytes());
    out.push(tenant.as_str().len() as u8);
    out.extend(tenant.as_str().as_bytes());
    out.extend(content);
}

/// Decodes a batch; `None` if the bytes are not a valid batch.
pub(super) fn decode(bytes: &Bytes) -> Option<Batch> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    decode_entries(body.strip_prefix(MAGIC)?)
}

/// Decodes the output of [`encode_entries`], including boxes.
pub(super) fn decode_entries(mut rest: &[u8]) -> Option<Batch> {
    let mut batch = Batch::default();
    while let Some((kind, after)) = rest.split_first() {
        let (length, after) = after.split_first_chunk::<4>()?;
        let (entry, after) = after.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        rest = after;
        if !(1..=SEALED).contains(kind) {
            batch.unknown += 1;
            continue;
        }
        let (length, entry) = entry.split_first()?;
        let (tenant, content) = entry.split_at_checked(usize::from(*length))?;
        let tenant: Name = str::from_utf8(tenant).ok()?.parse().ok()?;
        match *kind {
            SEALED => batch.sealed.push((tenant, Bytes::copy_from_slice(content))),
            kind => match decode_entry(kind, tenant, content) {
                Some(entry) => batch.entries.push(entry),
                None if kind == REMOVED => return None,
                None => batch.unknown += 1,
            },
        }
    }
    Some(batch)
}

fn decode_entry(kind: u8, tenant: Name, content: &[u8]) -> Option<JournalEntry> {
    let (model_id, mut rest) = content.split_first_chunk::<32>()?;
    let model_id = ModelId::from(*model_id);
    let key = field(&mut rest)?;
    let value = field(&mut rest)?;
    Some(match kind {
        1 => {
            let (block_hashes, []) = field(&mut rest)?.as_chunks::<8>() else { return None };
            let namespace = match field(&mut rest)? {
                [] => None,
                namespace => Some(str::from_utf8(namespace).ok()?.parse().ok()?),
            };
            let since_ms = field(&mut rest).and_then(decode_ms);
            let entry = IndexEntry {
                parent_hash: key.try_into().ok()?,
                blocks: IndexEntry::short_blocks(block_hashes.iter().map(|hash| &hash[..])),
                row: Arc::new(IndexRow::from_bytes(value)?),
            };
            let (entry, block_hashes) = (Arc::new(entry), block_hashes.to_vec());
            JournalEntry::Stored { tenant, model_id, entry, block_hashes, namespace, since_ms }
        }
        REMOVED => {
            let (seq, object) = key.split_first_chunk::<32>()?;
            let object: [u8; 32] = object.try_into().ok()?;
            let (seq_hash, object_digest) = ((*seq).into(), object.into());
            let reason = str::from_utf8(value).ok().and_then(Removal::parse).unwrap_or(Removal::Removed);
            JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason }
        }
        _ => {
            let (objects, bytes) = key.split_first_chunk::<8>()?;
            let (objects, bytes) = (u64::from_le_bytes(*objects), u64::from_le_bytes(bytes.try_into().ok()?));
            let batches = decode_batches(value)?;
            let [until_ms, listed_ms] = [(); 2].map(|()| field(&mut rest).and_then(decode_ms));
            let reach = Reach { batches, until_ms, listed_ms };
            JournalEntry::Counted { tenant, stored: Stored { objects, bytes }, reach }
        }
    })
}

fn decode_ms(field: &[u8]) -> Option<i64> {
    Some(i64::from_le_bytes(field.try_into().ok()?))
}

fn encode_batches(batches: &[(Name, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (replica, n) in batches {
        out.push(replica.as_str().len() as u8);
        out.extend(replica.as_str().as_bytes());
        out.extend(n.to_le_bytes());
    }
    out
}

fn decode_batches(mut rest: &[u8]) -> Option<Arc<[(Name, u64)]>> {
    let mut batches = Vec::new();
    while let Some((length, after)) = rest.split_first() {
        let (replica, after) = after.split_at_checked(usize::from(*length))?;
        let (n, after) = after.split_first_chunk::<8>()?;
        batches.push((str::from_utf8(replica).ok()?.parse().ok()?, u64::from_le_bytes(*n)));
        rest = after;
    }
    Some(batches.into())
}

/// Takes the next field off `rest`.
fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<2>()?;
    let (field, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    *rest = after;
    Some(field)
}

/// A decoded batch must survive encoding and decoding unchanged.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(entries: &[u8]) {
    let Some(batch) = decode_entries(entries) else { return };
    let written = encode(&batch);
    let read = decode(&Bytes::from(written.clone())).expect("a batch of ours");
    assert_eq!((encode(&read), read.unknown), (written, 0));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::tests_support::any_entry as any_indexed;

    fn any_entry() -> impl Strategy<Value = JournalEntry> {
        let place = ("[a-z]{1,9}", any::<[u8; 32]>(), 0..4, any::<[u8; 32]>());
        let reach =
            (prop::collection::vec(("[a-z0-9-]{1,36}", any::<u64>()), 0..4), prop::option::of(any::<i64>()));
        (place, any_indexed(), reach).prop_map(
            |((tenant, model, kind, object), entry, (batches, until_ms))| {
                let (tenant, model_id): (Name, _) = (tenant.parse().expect("a name"), model.into());
                if kind == 0 {
                    let stored = Stored { objects: entry.row.object_bytes, bytes: entry.row.first_position };
                    let batches =
                        batches.iter().map(|(name, n)| (name.parse().expect("a name"), *n)).collect();
                    let listed_ms = until_ms.filter(|ms| ms % 2 == 0);
                    let reach = Reach { batches, until_ms, listed_ms };
                    JournalEntry::Counted { tenant, stored, reach }
                } else if kind == 1 {
                    let whole = |short: &[u8]| {
                        let mut hash = [1, 2, 3, 4, 5, 6, 7, 8];
                        hash[..short.len()].copy_from_slice(short);
                        hash
                    };
                    let block_hashes: Vec<[u8; 8]> = entry.blocks.iter().map(|b| whole(b)).collect();
                    let namespace = (model[0] % 2 == 0).then(|| tenant.clone());
                    let since_ms = (object[0] % 2 == 0).then(|| i64::from(object[1]) << 32);
                    let entry = Arc::new(entry);
                    JournalEntry::Stored { tenant, model_id, entry, block_hashes, namespace, since_ms }
                } else {
                    let reason = Removal::ALL[usize::from(object[0]) % Removal::ALL.len()];
                    let (seq_hash, object_digest) = (entry.row.seq_hash, object.into());
                    JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason }
                }
            },
        )
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
    fn no_removal_of_a_newer_version_is_skipped() {
        let frame_of = |kind, fields: &[&[u8]]| {
            let mut content = vec![1; 32];
            for field in fields {
                content.extend((field.len() as u16).to_le_bytes());
                content.extend(*field);
            }
            let mut out = MAGIC.to_vec();
            frame(kind, &"a".parse().expect("a name"), &content, &mut out);
            out.extend(crc32c::crc32c(&out).to_le_bytes());
            Bytes::from(out)
        };
        let batch = decode(&frame_of(REMOVED, &[&[2; 64], b"reorganised"])).expect("a batch");
        let reasons: Vec<_> = batch
            .entries
            .iter()
            .map(|entry| match entry {
                JournalEntry::Removed { reason, .. } => Some(*reason),
                _ => None,
            })
            .collect();
        assert_eq!((reasons, batch.unknown), (vec![Some(Removal::Removed)], 0));
        assert_eq!(decode(&frame_of(REMOVED, &[&[2; 65], b"removed"])), None);
        // A row of another form.
        let batch = decode(&frame_of(1, &[&[2; 32], &[99; 80], &[3; 16], b""])).expect("a batch");
        assert_eq!((batch.entries, batch.unknown), (vec![], 1));
    }

    #[test]
    fn what_a_newer_version_adds_is_skipped_and_counted() {
        let (tenant, model_id): (Name, ModelId) = ("a".parse().expect("a name"), [1; 32].into());
        let entry = JournalEntry::Removed {
            tenant,
            model_id,
            seq_hash: [2; 32].into(),
            object_digest: [3; 32].into(),
            reason: Removal::Removed,
        };
        let mut bytes = encode(&Batch { entries: vec![entry.clone()], ..Batch::default() });
        bytes.truncate(bytes.len() - 4);
        // One field after the known ones, then an entry of an unknown kind, then a known one again.
        let first = bytes[MAGIC.len()..].to_vec();
        let length = u32::from_le_bytes(first[1..5].try_into().expect("4 bytes")) + 3;
        bytes[MAGIC.len() + 1..MAGIC.len() + 5].copy_from_slice(&length.to_le_bytes());
        bytes.extend([1, 0, 77]);
        bytes.extend([200, 2, 0, 0, 0, 9, 9]);
        bytes.extend(first);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        let entries = vec![entry.clone(), entry];
        assert_eq!(decode(&bytes.into()), Some(Batch { entries, unknown: 1, ..Batch::default() }));
    }
}
