use std::sync::Arc;

use async_trait::async_trait;
use futures::{TryStreamExt, stream::BoxStream};
use kvasir_types::Name;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
    memory::InMemory, path::Path,
};
use proptest::prelude::*;

use super::{FileKeys, KeyService, Keyring, SealedStore, plain_prefix, segments};
use crate::layout::{ChunkKey, Key, Layout};

const FIRST: &str = "[[key]]\ntenant = \"a\"\nid = \"one\"\nkey = \"0101010101010101010101010101010101010101010101010101010101010101\"\n";
const SECOND: &str = "[[key]]\ntenant = \"a\"\nid = \"two\"\nkey = \"0202020202020202020202020202020202020202020202020202020202020202\"\n";

fn layout() -> Layout {
    Layout::new(&Path::from("root"))
}

fn sealed(inner: &Arc<impl ObjectStore>, keys: &str) -> SealedStore {
    let keys = FileKeys::parse(keys).expect("keys");
    let inner = Arc::clone(inner) as Arc<dyn ObjectStore>;
    SealedStore::new(Arc::new(Keyring::new(inner, layout(), Some(Arc::new(keys)))))
}

fn place(tenant: &str, n: u8) -> Path {
    let tenant: Name = tenant.parse().expect("a name");
    let chunk = ChunkKey {
        tenant,
        model_id: [1; 32].into(),
        seq_hash: [n; 32].into(),
        object_digest: [n; 32].into(),
    };
    layout().path(&Key::Chunk(chunk))
}

fn plain(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 % 251) as u8).collect()
}

fn raw(path: &Path) -> Path {
    Path::from(path.as_ref().replace(".kvc", ".kvs"))
}

async fn read(store: &dyn ObjectStore, path: &Path, range: Option<GetRange>) -> Result<Vec<u8>> {
    let found = store.get_opts(path, GetOptions { range, ..GetOptions::default() }).await?;
    Ok(found.bytes().await?.to_vec())
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// As S3: an upload with a short part before the last is not completed. A full one takes no whole objects.
#[derive(Debug)]
struct Strict {
    inner: Arc<InMemory>,
    is_full: bool,
}

impl std::fmt::Display for Strict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Strict")
    }
}

fn refused(reason: &'static str) -> object_store::Error {
    object_store::Error::Generic { store: "strict", source: reason.into() }
}

#[async_trait]
impl ObjectStore for Strict {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        if self.is_full {
            return Err(refused("it is full"));
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(StrictUpload { inner, parts: Vec::new() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct StrictUpload {
    inner: Box<dyn MultipartUpload>,
    parts: Vec<usize>,
}

#[async_trait]
impl MultipartUpload for StrictUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.parts.push(data.content_length());
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.parts.pop();
        if self.parts.iter().any(|bytes| *bytes < 5 << 20) {
            return Err(refused("a part before the last is short"));
        }
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

/// A namespace may be called like the sealed form of an object.
#[test]
fn a_name_that_looks_like_a_sealed_object_is_listed_as_it_is() {
    block_on(async {
        let inner = Arc::new(InMemory::new());
        let store = sealed(&inner, FIRST);
        let (tenant, namespace) = ("b".parse().expect("a name"), "x.kvs".parse().expect("a name"));
        let path = layout().path(&Key::Namespace { tenant, namespace });
        store.put(&path, PutPayload::new()).await.expect("puts");
        let listed: Vec<_> = store.list(None).try_collect().await.expect("lists");
        assert_eq!(listed.iter().map(|meta| &meta.location).collect::<Vec<_>>(), [&path]);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// A sealed store answers every read as a plain one does.
    #[test]
    fn reads_are_those_of_a_plain_store(bytes in 0usize..70_000, start in 0u64..70_000, length in 1u64..40_000, suffix: bool) {
        block_on(async {
            let (inner, reference) = (Arc::new(InMemory::new()), InMemory::new());
            let (store, path, content) = (sealed(&inner, FIRST), place("a", 1), plain(bytes));
            store.put(&path, content.clone().into()).await.expect("puts");
            reference.put(&path, content.clone().into()).await.expect("puts");
            let range = if suffix { GetRange::Suffix(length) } else { GetRange::Bounded(start..start + length) };
            for range in [None, Some(range), Some(GetRange::Offset(start))] {
                let expected = read(&reference, &path, range.clone()).await.ok();
                assert_eq!(read(&store, &path, range.clone()).await.ok(), expected, "{range:?} of {bytes}");
            }
            let head = store.head(&path).await.expect("is there");
            let listed: Vec<_> = store.list(None).map_ok(|m| (m.location, m.size)).try_collect().await.expect("lists");
            assert_eq!(head.size, bytes as u64);
            assert!(listed.contains(&(path.clone(), bytes as u64)), "{listed:?}");
            let stored = read(&*inner, &raw(&path), None).await.expect("is there");
            assert_eq!(stored.len() as u64, segments::sealed_bytes(bytes as u64));
            if bytes >= 16 {
                assert!(!stored.windows(16).any(|window| window == &content[..16]), "in the clear");
            }
        });
    }

    /// Parts of any sizes make the object that one write makes.
    #[test]
    fn uploads_in_parts_read_back(parts in proptest::collection::vec(0usize..40_000, 0..6)) {
        block_on(async {
            let inner = Arc::new(InMemory::new());
            let (store, path, content) = (sealed(&inner, FIRST), place("a", 1), plain(parts.iter().sum()));
            let mut upload = store.put_multipart(&path).await.expect("starts");
            let mut rest = content.as_slice();
            for part in parts {
                let (now, later) = rest.split_at(part);
                upload.put_part(PutPayload::from(now.to_vec())).await.expect("a part");
                rest = later;
            }
            upload.complete().await.expect("completes");
            assert_eq!(read(&store, &path, None).await.expect("reads"), content);
        });
    }

    /// No flipped bit, wherever it is, gives other bytes.
    #[test]
    fn an_altered_object_does_not_open(at in 0usize..50_000, bit in 0u8..8) {
        block_on(async {
            let inner = Arc::new(InMemory::new());
            let path = place("a", 1);
            sealed(&inner, FIRST).put(&path, plain(40_000).into()).await.expect("puts");
            let mut stored = read(&*inner, &raw(&path), None).await.expect("is there");
            let at = at % stored.len();
            stored[at] ^= 1 << bit;
            inner.put(&raw(&path), stored.into()).await.expect("puts");
            assert!(read(&sealed(&inner, FIRST), &path, None).await.is_err(), "byte {at}");
        });
    }
}

#[tokio::test]
async fn a_moved_a_cut_and_a_shuffled_object_do_not_open() {
    let inner = Arc::new(InMemory::new());
    let store = sealed(&inner, FIRST);
    let (one, two) = (place("a", 1), place("a", 2));
    for path in [&one, &two] {
        store.put(path, plain(50_000).into()).await.expect("puts");
    }
    let bytes = read(&*inner, &raw(&one), None).await.expect("is there");
    let stride = 16_384 + 16;
    let mut shuffled = bytes.clone();
    let (a, b) = shuffled[32..].split_at_mut(stride);
    a.swap_with_slice(&mut b[..stride]);
    let cut = bytes[..32 + 2 * stride].to_vec();
    for wrong in
        [read(&*inner, &raw(&two), None).await.expect("is there"), shuffled, cut, vec![0; 32], Vec::new()]
    {
        inner.put(&raw(&one), wrong.into()).await.expect("puts");
        assert!(read(&sealed(&inner, FIRST), &one, None).await.is_err());
    }
}

#[tokio::test]
async fn rotation_rewraps_and_rewrites_no_payload() {
    let inner = Arc::new(InMemory::new());
    let path = place("a", 1);
    sealed(&inner, FIRST).put(&path, plain(9_000).into()).await.expect("puts");
    let before = read(&*inner, &raw(&path), None).await.expect("is there");
    let both = format!("{FIRST}{SECOND}");
    assert_eq!(read(&sealed(&inner, &both), &path, None).await.expect("reads"), plain(9_000));
    assert_eq!(read(&*inner, &raw(&path), None).await.expect("is there"), before);
    // The first wrapping key is not needed any more.
    assert_eq!(read(&sealed(&inner, SECOND), &path, None).await.expect("reads"), plain(9_000));
    let other = SECOND.replace("two", "three").replace("02", "03");
    let error = read(&sealed(&inner, &other), &path, None).await.expect_err("no key").to_string();
    assert!(error.contains("restore it"), "{error}");
}

#[tokio::test]
async fn a_store_that_takes_no_writes_is_read_after_a_rotation() {
    let inner = Arc::new(InMemory::new());
    let path = place("a", 1);
    sealed(&inner, FIRST).put(&path, plain(9_000).into()).await.expect("puts");
    let full = Arc::new(Strict { inner: Arc::clone(&inner), is_full: true });
    let store = sealed(&full, &format!("{FIRST}{SECOND}"));
    for _ in 0..2 {
        assert_eq!(read(&store, &path, None).await.expect("reads"), plain(9_000));
    }
    assert!(read(&sealed(&inner, SECOND), &path, None).await.is_err(), "it was not rewrapped");
}

#[tokio::test]
async fn no_part_before_the_last_is_short() {
    let strict = Arc::new(Strict { inner: Arc::default(), is_full: false });
    let (store, path) = (sealed(&strict, FIRST), place("a", 1));
    for rest in [1, 20 << 10, 1 << 20, 6 << 20] {
        let content = plain((8 << 20) + rest);
        let mut upload = store.put_multipart(&path).await.expect("starts");
        for part in content.chunks(8 << 20) {
            upload.put_part(PutPayload::from(part.to_vec())).await.expect("a part");
        }
        upload.complete().await.expect("completes");
        assert!(read(&store, &path, None).await.expect("reads") == content, "{rest} bytes more");
    }
}

#[tokio::test]
async fn first_writers_at_once_lose_nothing() {
    let inner = Arc::new(InMemory::new());
    let stores = [sealed(&inner, FIRST), sealed(&inner, FIRST)];
    let writes = stores
        .iter()
        .zip([1, 2])
        .map(|(store, n)| async move { store.put(&place("a", n), plain(100).into()).await });
    futures::future::try_join_all(writes).await.expect("both put");
    // The same object from both: one of two whole objects stays.
    for store in &stores {
        store.put(&place("a", 3), plain(200).into()).await.expect("puts");
    }
    let third = sealed(&inner, FIRST);
    for (n, bytes) in [(1, 100), (2, 100), (3, 200)] {
        assert_eq!(read(&third, &place("a", n), None).await.expect("reads"), plain(bytes));
    }
}

/// Whoever can write to the bucket can write plain objects: of a tenant with a key they are none.
#[tokio::test]
async fn a_plain_object_of_a_tenant_with_a_key_is_no_object() {
    let inner = Arc::new(InMemory::new());
    let store = sealed(&inner, FIRST);
    let (moved, forged) = (place("a", 1), place("a", 2));
    store.put(&moved, plain(100).into()).await.expect("puts");
    inner.delete(&raw(&moved)).await.expect("deletes");
    for path in [&moved, &forged] {
        inner.put(path, plain(50).into()).await.expect("puts");
    }
    for store in [&store, &sealed(&inner, FIRST)] {
        for path in [&moved, &forged] {
            let missing = |error: Option<object_store::Error>| {
                matches!(error, Some(object_store::Error::NotFound { .. }))
            };
            assert!(missing(read(store, path, None).await.err()), "read");
            assert!(missing(read(store, path, Some(GetRange::Bounded(0..10))).await.err()), "read in part");
            assert!(missing(store.head(path).await.err()), "asked for");
        }
    }
    // A create is not refused for it, and the sealed object is the one that is there.
    store.put_opts(&moved, plain(70).into(), PutMode::Create.into()).await.expect("creates");
    assert_eq!(read(&store, &moved, None).await.expect("reads"), plain(70));
    // Both are listed, so that a collector finds them; deleting takes both forms.
    let chunks = async || -> Vec<Path> {
        let listed = store.list(None).map_ok(|meta| meta.location);
        listed
            .try_filter(|path| std::future::ready(path.as_ref().ends_with(".kvc")))
            .try_collect()
            .await
            .expect("lists")
    };
    assert!(chunks().await.contains(&forged));
    for path in [&moved, &forged] {
        store.delete(path).await.expect("deletes");
    }
    assert_eq!(chunks().await, []);
}

#[tokio::test]
async fn tenants_without_a_key_are_as_they_were() {
    let inner = Arc::new(InMemory::new());
    let store = sealed(&inner, FIRST);
    let other = place("b", 1);
    store.put(&other, plain(100).into()).await.expect("puts");
    assert_eq!(read(&*inner, &other, None).await.expect("in the clear"), plain(100));
    let create = store.put_opts(&other, plain(1).into(), PutMode::Create.into()).await;
    assert!(matches!(create, Err(object_store::Error::AlreadyExists { .. })));
    // Deleted in either form, and gone for the store as well.
    store.put(&place("a", 1), plain(10).into()).await.expect("puts");
    for path in [place("a", 1), other] {
        store.delete(&path).await.expect("deletes");
        assert!(matches!(store.head(&path).await, Err(object_store::Error::NotFound { .. })));
    }
    let left: Vec<_> = inner.list(None).try_collect().await.expect("lists");
    assert!(left.iter().all(|meta| meta.location.as_ref().contains("/k/")), "{left:?}");
}

#[test]
fn bad_keys_files_say_what_is_wrong() {
    let short = FIRST.replace("01010101", "");
    let twice = FIRST.repeat(2);
    for (text, expected) in [
        (short.as_str(), "64 hex digits"),
        (&twice, "twice"),
        ("[[key]]\nid = 1", "not a valid keys file"),
        ("", "no key:"),
    ] {
        let error = FileKeys::parse(text).expect_err(text);
        assert!(error.contains(expected), "{error}");
    }
    let (key, id) = ("01".repeat(32), "one");
    for (text, expected) in [
        (format!("a:{id}"), "tenant:id:key"),
        (format!("a:{id}:{key},a:{id}:{key}"), "twice"),
        (format!("a:{id}:01"), "64 hex digits"),
        (format!("a:b c:{key}"), "its id"),
        (String::new(), "tenant:id:key"),
    ] {
        let error = FileKeys::parse_list(&text).expect_err(&text);
        assert!(error.contains(expected) && !error.contains(&key), "{error}");
    }
    let list = FileKeys::parse_list(&format!("a:{id}:{key}, *:two:{key}")).expect("keys");
    let current = |tenant: &str| list.current(&tenant.parse().expect("a name")).map(|id| id.to_string());
    assert_eq!((current("a").as_deref(), current("b").as_deref()), (Some("one"), Some("two")));
    assert!(!format!("{:?}", FileKeys::parse(FIRST)).contains("0101"), "keys are not printed");
}

/// Computed by another implementation (Python's `cryptography`).
#[test]
fn known_answers_of_a_wrapped_key_and_of_a_whole_segment() {
    let key = |of: fn(usize) -> u8| zeroize::Zeroizing::new(std::array::from_fn(of));
    let (by, data) = (key(|i| i as u8), key(|_| 7));
    let wrapped = plain_prefix::wrap(&by, &data, &[9; 12], b"root/1/t/a");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let expected =
        "b41f0f3c809844a3d60e37feac91bcc83e15d8295d0147b214f0656c94308c4029edbe9414c7118c3a3779d25c3f6a8b";
    assert_eq!(hex(&wrapped), expected);
    assert_eq!(plain_prefix::unwrap(&by, &wrapped, &[9; 12], b"root/1/t/a"), Some(data.clone()));
    assert_eq!(plain_prefix::unwrap(&by, &wrapped, &[9; 12], b"root/1/t/b"), None);
    let mut sealed = Vec::new();
    segments::Segments::new(&data).seal(0, false, &plain(16 << 10), &mut sealed);
    let sha256 = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &sealed);
    assert_eq!(hex(sha256.as_ref()), "8871dcdfa84263e3532c477adf48f3f40bbd739a7aa9b5d3efe58b68a9190182");
}

/// A key belongs to a place, and a place to one content: equal segments of two objects have nothing in common.
#[tokio::test]
async fn whoever_writes_an_object_writes_the_same_bytes_and_no_other_object_has_them() {
    let inner = Arc::new(InMemory::new());
    let mut seen = std::collections::HashSet::new();
    let mut again = Vec::new();
    for n in [1, 2, 1] {
        let path = place("a", n);
        sealed(&inner, FIRST).put(&path, vec![0; 40_000].into()).await.expect("puts");
        let stored = read(&*inner, &raw(&path), None).await.expect("is there");
        inner.delete(&raw(&path)).await.expect("deletes");
        again.push(stored);
    }
    assert_eq!(again[0], again[2]);
    for stored in &again[..2] {
        for (n, block) in stored[32..].chunks_exact(16).enumerate() {
            assert!(seen.insert(block.to_vec()), "block {n} was seen before");
        }
    }
    // In parts as well.
    let store = sealed(&inner, FIRST);
    let mut upload = store.put_multipart(&place("a", 1)).await.expect("starts");
    for part in [39_000, 1_000] {
        upload.put_part(PutPayload::from(vec![0; part])).await.expect("a part");
    }
    upload.complete().await.expect("completes");
    assert_eq!(read(&*inner, &raw(&place("a", 1)), None).await.expect("is there"), again[0]);
}

/// Held back between its listing and its choice, a writer meets a choice that is made.
#[tokio::test]
async fn first_writers_agree_on_one_tenant_key() {
    let inner = Arc::new(InMemory::new());
    let keyring = || {
        let keys = FileKeys::parse(FIRST).expect("keys");
        Arc::new(Keyring::new(Arc::clone(&inner) as Arc<dyn ObjectStore>, layout(), Some(Arc::new(keys))))
    };
    let tenant: Name = "a".parse().expect("a name");
    let writers: Vec<_> = (0..8).map(|_| keyring()).collect();
    let newest = futures::future::try_join_all(writers.iter().map(|writer| writer.newest(&tenant)));
    let ids: std::collections::HashSet<_> =
        newest.await.expect("keys").into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), 1);
    // A choice that was altered is not followed, and makes no new key.
    let choice = layout().path(&Key::TenantKeyChoice { tenant: tenant.clone() });
    let keys = async || inner.list(None).try_collect::<Vec<_>>().await.expect("lists").len();
    let before = keys().await;
    for altered in [&b"zz"[..], &[b'0'; 32]] {
        inner.put(&choice, altered.to_vec().into()).await.expect("puts");
        keyring().newest(&tenant).await.err();
        assert_eq!(keys().await, before);
    }
}
