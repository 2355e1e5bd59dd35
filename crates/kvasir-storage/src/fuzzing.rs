//! Entry points of the fuzz targets: parsers of data in the bucket and on disk. Compiled only for fuzzing and
//! tests.

use std::sync::Arc;

use kvasir_store::{
    OpenStore, StoreConfig, StoreKind,
    layout::{ChunkKey, Key, Layout},
    observe::NoObserver,
    seal::{FileKeys, Purpose, Sealer},
};
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path};

use crate::{
    changes::journal, checked_json, contexts::StoredContext, hot, index::IndexRow,
    lifecycle::gc::intents::Intent,
};

const KEYS: &str = "[[key]]\ntenant = \"a\"\nid = \"k\"\nkey = \"0101010101010101010101010101010101010101010101010101010101010101\"\n";

/// A batch of the journal without its magic and its checksum.
pub fn journal(entries: &[u8]) {
    journal::fuzz(entries);
}

/// A JSON record.
pub fn records(json: &[u8]) {
    if let Ok(stored) = checked_json::from_slice::<StoredContext>(json) {
        let again = checked_json::to_vec(&stored).expect("it was JSON");
        assert_eq!(checked_json::from_slice::<StoredContext>(&again), Ok(stored));
    }
    if let Ok(intent) = checked_json::from_slice::<Intent>(json) {
        let again = checked_json::to_vec(&intent).expect("it was JSON");
        assert!(checked_json::from_slice::<Intent>(&again).is_ok_and(|read| read.id == intent.id));
    }
}

/// A row of the index, as in the journal.
pub fn index_row(bytes: &[u8]) {
    if let Some(row) = IndexRow::from_bytes(bytes) {
        // Compare bytes, because NaN equals nothing.
        assert_eq!(IndexRow::from_bytes(&row.to_bytes()).map(|again| again.to_bytes()), Some(row.to_bytes()));
    }
}

/// The name of an object in the bucket, whoever wrote it there, or of a frame's file.
pub fn keys(name: &str) {
    hot::fuzz_name(name);
    let layout = Layout::new(&Path::from("root"));
    let Ok(path) = Path::parse(format!("root/2/{name}")) else { return };
    if let Some(key) = layout.parse(&path) {
        assert_eq!(layout.path(&key), path, "one key has one name");
    }
}

/// How sealed bytes are changed: where, what is there then, and how much of the rest stays.
struct Change<'a> {
    at: usize,
    put: &'a [u8],
    inserts: bool,
    keep: usize,
}

impl<'a> Change<'a> {
    fn parse(data: &'a [u8]) -> Option<Self> {
        let ([at0, at1, inserts, keep0, keep1], put) = data.split_first_chunk()?;
        let number = |low: u8, high: u8| usize::from(u16::from_le_bytes([low, high]));
        Some(Self { at: number(*at0, *at1), put, inserts: inserts & 1 == 1, keep: number(*keep0, *keep1) })
    }

    fn apply(&self, bytes: &[u8]) -> Vec<u8> {
        let at = self.at.min(bytes.len());
        let mut out = bytes[..at].to_vec();
        out.extend_from_slice(self.put);
        let rest = if self.inserts { at } else { (at + self.put.len()).min(bytes.len()) };
        out.extend_from_slice(&bytes[rest..]);
        out.truncate(self.keep);
        out
    }
}

/// A sealed frame, object and record that somebody else changed: each is what was sealed, or nothing. The
/// first two bytes are the size of what is sealed, the others the change.
pub fn sealed(data: &[u8]) {
    let Some((size, data)) = data.split_first_chunk::<2>() else { return };
    let Some(change) = Change::parse(data) else { return };
    let size = usize::from(u16::from_le_bytes(*size)) % 40_000;
    let plain: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();

    let sealer = Sealer::random();
    let mut frame = change.apply(&sealer.seal(b"here", &plain));
    assert!(sealer.open(b"elsewhere", &mut frame.clone()).is_none());
    assert!(sealer.open(b"here", &mut frame).is_none_or(|opened| opened == plain));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(sealed_in_a_store(&plain, &change));
}

async fn sealed_in_a_store(plain: &[u8], change: &Change<'_>) {
    let (inner, config) = (Arc::new(InMemory::new()), StoreConfig::new("memory://".parse().expect("a URL")));
    let observer = Arc::new(NoObserver);
    let keys = Arc::new(FileKeys::parse(KEYS).expect("keys"));
    let backend = Arc::clone(&inner) as Arc<dyn ObjectStore>;
    let store = OpenStore::with(backend, &Path::default(), StoreKind::Memory, &config, observer).sealed(keys);
    let key = ChunkKey {
        tenant: "a".parse().expect("a name"),
        model_id: [1; 32].into(),
        seq_hash: [2; 32].into(),
        object_digest: [3; 32].into(),
    };
    let tenant = key.tenant.clone();
    let path = store.layout().path(&Key::Chunk(key));
    store.objects().put(&path, plain.to_vec().into()).await.expect("puts");
    let raw = Path::from(path.as_ref().replace(".kvc", ".kvs"));
    let sealed = inner.get(&raw).await.expect("is there").bytes().await.expect("memory");
    inner.put(&raw, change.apply(&sealed).into()).await.expect("puts");
    if let Ok(found) = store.objects().get(&path).await
        && let Ok(opened) = found.bytes().await
    {
        assert_eq!(opened, plain);
    }
    let middle = plain.len() / 3..plain.len() / 2;
    if !middle.is_empty()
        && let Ok(opened) = store.objects().get_range(&path, middle.start as u64..middle.end as u64).await
    {
        assert_eq!(opened, plain[middle]);
    }

    let keyring = store.keyring();
    let sealed = keyring.seal(&tenant, Purpose::Context, "here", plain).await.expect("seals");
    if let Ok(opened) = keyring.open(&tenant, Purpose::Context, "here", &change.apply(&sealed)).await {
        assert_eq!(opened, plain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds of a target, each also cut after every byte and with every bit flipped.
    fn damaged(target: &str, check: impl Fn(&[u8])) {
        let folder =
            format!("{}/../../services/kvasir-server/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let mut seeds = 0;
        for file in std::fs::read_dir(folder).expect("a corpus") {
            let seed = std::fs::read(file.expect("a seed").path()).expect("reads");
            check(&seed);
            for at in 0..seed.len() {
                check(&seed[..at]);
                for bit in 0..8 {
                    let mut flipped = seed.clone();
                    flipped[at] ^= 1 << bit;
                    check(&flipped);
                }
            }
            seeds += 1;
        }
        assert!(seeds >= 3, "{seeds} seeds of {target}");
    }

    #[test]
    fn corpora_and_what_is_damaged_hold() {
        damaged("journal", journal);
        damaged("records", records);
        damaged("records", index_row);
        damaged("keys", |data| {
            if let Ok(name) = std::str::from_utf8(data) {
                keys(name);
            }
        });
        damaged("sealed", sealed);
    }
}
