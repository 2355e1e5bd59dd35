//! Sealed objects, records and frames that somebody else changed: they are what was sealed, or nothing.
#![no_main]

use std::sync::Arc;

use kvasir_server_fuzz as _;
use kvasir_store::{
    OpenStore, StoreConfig, StoreKind,
    layout::{ChunkKey, Key},
    observe::NoObserver,
    seal::{FileKeys, Purpose, Sealer},
};
use libfuzzer_sys::fuzz_target;
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};

const KEYS: &str = "[[key]]\ntenant = \"a\"\nid = \"k\"\nkey = \"0101010101010101010101010101010101010101010101010101010101010101\"\n";

/// How bytes are changed: where, what is there then, and how much of the rest stays.
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

fuzz_target!(|data: &[u8]| {
    let Some((size, data)) = data.split_first_chunk::<2>() else { return };
    let Some(change) = Change::parse(data) else { return };
    let plain: Vec<u8> = (0..usize::from(u16::from_le_bytes(*size)) % 40_000).map(|i| (i * 31 % 251) as u8).collect();

    let sealer = Sealer::random();
    let mut frame = change.apply(&sealer.seal(b"here", &plain));
    assert!(sealer.open(b"elsewhere", &mut frame.clone()).is_none());
    assert!(sealer.open(b"here", &mut frame).is_none_or(|opened| opened == plain));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let (inner, config) = (Arc::new(InMemory::new()), StoreConfig::new("memory://".parse().expect("a URL")));
        let observer = Arc::new(NoObserver);
        let keys = Arc::new(FileKeys::parse(KEYS).expect("keys"));
        let backend = Arc::clone(&inner) as Arc<dyn object_store::ObjectStore>;
        let store = OpenStore::with(backend, &Path::default(), StoreKind::Memory, &config, observer).sealed(keys);
        let key = ChunkKey {
            tenant: "a".parse().expect("a name"),
            model_id: [1; 32].into(),
            seq_hash: [2; 32].into(),
            object_digest: [3; 32].into(),
        };
        let tenant = key.tenant.clone();
        let path = store.layout().path(&Key::Chunk(key));
        store.objects().put(&path, plain.clone().into()).await.expect("puts");
        let raw = Path::from(path.as_ref().replace(".kvc", ".kvs"));
        let sealed = inner.get(&raw).await.expect("is there").bytes().await.expect("memory");
        inner.put(&raw, change.apply(&sealed).into()).await.expect("puts");
        if let Ok(found) = store.objects().get(&path).await
            && let Ok(opened) = found.bytes().await
        {
            assert_eq!(opened, plain);
        }
        let middle = plain.len() as u64 / 3..plain.len() as u64 / 2;
        if !middle.is_empty()
            && let Ok(opened) = store.objects().get_range(&path, middle.clone()).await
        {
            assert_eq!(opened, plain[middle.start as usize..middle.end as usize]);
        }

        let keyring = store.keyring();
        let sealed = keyring.seal(&tenant, Purpose::Context, "here", &plain).await.expect("seals");
        if let Ok(opened) = keyring.open(&tenant, Purpose::Context, "here", &change.apply(&sealed)).await {
            assert_eq!(opened, plain);
        }
    });
});
