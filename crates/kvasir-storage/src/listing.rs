//! Listings of the store, with long folders read by several requests at once.
//!
//! A store lists in the order of names, a page of a thousand after the other: a hundred million chunks take hours. The
//! folders of chunks and tombstones are named by hashes, which are uniform. So once a folder has filled a page, its rest
//! is cut into slices of the hash space that hold less than a page each, and several slices are listed at once. Names
//! still come in the store's order. How wide a slice is follows from what the last ones held: hashes that someone chose
//! cost a few requests more, and no memory.

use std::ops::Range;

use futures::{
    StreamExt, TryStreamExt,
    future::{self, Either, try_join_all},
    stream::{self, BoxStream},
};
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key, Layout},
};
use object_store::{ObjectMeta, ObjectStore, path::Path};
use std::sync::Arc;

use crate::limits;

/// Objects of a listing whose names are keys of the layout, with their metadata.
pub(crate) type Listing = BoxStream<'static, Result<(Key, ObjectMeta), StoreError>>;

/// First 32 bits of hashes: the end of all.
const HASHES_END: u64 = 1 << 32;

/// Lists the objects that are named by a key of the layout.
#[derive(Debug, Clone)]
pub(crate) struct Lister {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) layout: Layout,
    /// Whether it lists in the order of names; a walk of folders does not.
    pub(crate) is_ordered: bool,
    /// Named in errors.
    pub(crate) operation: &'static str,
}

impl Lister {
    /// The objects under `prefix`, one page after the other.
    pub(crate) fn paged(&self, prefix: &Path) -> Listing {
        self.keyed(self.objects.list(Some(prefix)))
    }

    /// Like [`paged`](Self::paged), after `offset`.
    pub(crate) fn paged_behind(&self, prefix: &Path, offset: &Path) -> Listing {
        self.keyed(self.objects.list_with_offset(Some(prefix), offset))
    }

    fn keyed(&self, listing: BoxStream<'static, object_store::Result<ObjectMeta>>) -> Listing {
        let layout = self.layout.clone();
        let keyed =
            move |meta: ObjectMeta| future::ready(Ok(layout.parse(&meta.location).map(|key| (key, meta))));
        listing.map_err(StoreError::request(self.operation)).try_filter_map(keyed).boxed()
    }

    /// The objects under `prefix`, which is above whole folders of hashes.
    pub(crate) fn all(&self, prefix: &Path) -> Listing {
        if !self.is_ordered {
            return self.paged(prefix);
        }
        let (this, prefix) = (self.clone(), prefix.clone());
        let begun = (this.paged(&prefix), None::<Path>, 0, 0);
        let parts = stream::try_unfold(begun, move |(mut listing, mut folder, mut met, before)| {
            let (this, prefix) = (this.clone(), prefix.clone());
            async move {
                let Some((key, meta)) = listing.try_next().await? else { return Ok::<_, StoreError>(None) };
                let (of_key, at) = (this.folder(&key), hash_start(&key).unwrap_or_default());
                met = if of_key == folder { met + 1 } else { 1 };
                folder = of_key;
                // Only from another hash on, so that the objects of one stay together, a plain and a sealed form of one
                // object as well.
                let (Some(long), true) = (&folder, met > limits::LISTING_PAGE && at > before) else {
                    let one = stream::once(future::ready(Ok((key, meta))));
                    return Ok(Some((Either::Left(one), (listing, folder, met, at))));
                };
                // This key is listed again.
                let width = at * limits::LISTING_SLICE_KEYS as u64 / met as u64;
                let rest = this.sliced(long, at..HASHES_END, width);
                // Behind all hex digits.
                let listing = this.paged_behind(&prefix, &long.clone().join("g"));
                Ok(Some((Either::Right(rest), (listing, None, 0, 0))))
            }
        });
        parts.try_flatten().boxed()
    }

    /// The chunks or tombstones in `folder` whose hash begins with one of these hex digits.
    pub(crate) fn hashes(&self, folder: &Path, digits: Range<u8>) -> Listing {
        let range = u64::from(digits.start) << 28..u64::from(digits.end) << 28;
        if !self.is_ordered {
            let is_one = move |(key, _): &(Key, ObjectMeta)| {
                future::ready(hash_start(key).is_some_and(|hash| range.contains(&hash)))
            };
            return self.paged(folder).try_filter(is_one).boxed();
        }
        let (this, folder) = (self.clone(), folder.clone());
        let listed = async move {
            let page = this.range(&folder, range.clone()).take(limits::LISTING_PAGE + 1);
            let mut page: Vec<_> = page.try_collect().await?;
            let last = page.last().and_then(|(key, _)| hash_start(key));
            let Some(at) = last.filter(|_| page.len() > limits::LISTING_PAGE) else {
                return Ok::<_, StoreError>(stream::iter(page.into_iter().map(Ok)).boxed());
            };
            // The last hash may not be whole.
            page.retain(|(key, _)| hash_start(key).is_some_and(|hash| hash < at));
            let width = (at - range.start) * limits::LISTING_SLICE_KEYS as u64 / limits::LISTING_PAGE as u64;
            let first = stream::iter(page.into_iter().map(Ok));
            Ok(first.chain(this.sliced(&folder, at..range.end, width)).boxed())
        };
        stream::once(listed).try_flatten().boxed()
    }

    /// A range of a folder, in slices of `width` at first, several at once.
    fn sliced(&self, folder: &Path, range: Range<u64>, width: u64) -> Listing {
        let (this, folder, end) = (self.clone(), folder.clone(), range.end);
        let slices = stream::try_unfold((range.start, width.max(1)), move |(start, width)| {
            let (this, folder) = (this.clone(), folder.clone());
            async move {
                if start >= end {
                    return Ok::<_, StoreError>(None);
                }
                let starts = (0..limits::LISTINGS_AT_ONCE as u64).map(|n| start + n * width);
                let slices: Vec<_> =
                    starts.take_while(|at| *at < end).map(|at| at..(at + width).min(end)).collect();
                let next = slices.last().map_or(end, |last| last.end);
                let wanted = (limits::LISTING_SLICE_KEYS * slices.len()) as u64;
                let pages = try_join_all(slices.into_iter().map(|slice| this.slice(&folder, slice))).await?;
                let met = pages.iter().map(|(keys, _)| keys.len() as u64).sum::<u64>();
                let fitting = width.saturating_mul(wanted) / met.max(1);
                let width = fitting.clamp((width / 16).max(1), width.saturating_mul(256)).min(HASHES_END);
                let listed = stream::iter(pages)
                    .flat_map(|(keys, rest)| stream::iter(keys.into_iter().map(Ok)).chain(rest));
                Ok(Some((listed, (next, width))))
            }
        });
        slices.try_flatten().boxed()
    }

    /// One slice: at most two pages at once, and the listing of the rest.
    async fn slice(
        &self,
        folder: &Path,
        range: Range<u64>,
    ) -> Result<(Vec<(Key, ObjectMeta)>, Listing), StoreError> {
        let mut listing = self.range(folder, range);
        let keys = listing.by_ref().take(2 * limits::LISTING_PAGE).try_collect().await?;
        Ok((keys, listing))
    }

    fn range(&self, folder: &Path, range: Range<u64>) -> Listing {
        match range.start {
            0 => until(self.paged(folder), range.end),
            start => {
                until(self.paged_behind(folder, &folder.clone().join(format!("{start:08x}"))), range.end)
            }
        }
    }

    /// The folder of hashes that a key is in.
    fn folder(&self, key: &Key) -> Option<Path> {
        match key {
            Key::Chunk(key) => Some(self.layout.model_chunks_prefix(&key.tenant, &key.model_id)),
            Key::Tombstone(key) | Key::Gone(key) => {
                Some(self.layout.model_tombstones_prefix(&key.tenant, &key.model_id))
            }
            _ => None,
        }
    }
}

/// A listing up to the first hash that begins with `end`.
fn until(listing: Listing, end: u64) -> Listing {
    let is_before =
        move |(key, _): &(Key, ObjectMeta)| future::ready(Ok(hash_start(key).is_none_or(|hash| hash < end)));
    listing.try_take_while(is_before).boxed()
}

/// The first 32 bits of the hash in a key.
fn hash_start(key: &Key) -> Option<u64> {
    match key {
        Key::Chunk(ChunkKey { seq_hash, .. })
        | Key::Tombstone(ChunkKey { seq_hash, .. })
        | Key::Gone(ChunkKey { seq_hash, .. }) => {
            seq_hash.as_bytes().first_chunk().map(|bytes| u32::from_be_bytes(*bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        time::Duration,
    };

    use kvasir_store::{
        OpenStore, StoreConfig,
        observe::{RequestOutcome, StoreObserver, StoreOp},
    };
    use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};
    use object_store::ObjectStoreExt;

    use super::*;

    #[derive(Debug, Default)]
    struct Listings(AtomicU64);

    impl StoreObserver for Listings {
        fn request(&self, op: StoreOp, _: RequestOutcome, _: u64, _: Duration) {
            self.0.fetch_add(u64::from(op == StoreOp::List), Ordering::Relaxed);
        }
    }

    fn hash(n: u64) -> [u8; 32] {
        *blake3::hash(&n.to_le_bytes()).as_bytes()
    }

    /// A store of some chunks of two models, `hash_of` the n-th of the first one; and what counts its listings.
    async fn filled(count: u64, hash_of: impl Fn(u64) -> [u8; 32]) -> (Lister, Arc<Listings>) {
        let listings = Arc::new(Listings::default());
        let config = StoreConfig::new("memory://".parse().expect("a url"));
        let store = OpenStore::open(&config, Arc::clone(&listings) as _).expect("opens");
        let tenant: Name = "t".parse().expect("a name");
        let put = async |key: Key| {
            store.objects().put(&store.layout().path(&key), "x".into()).await.expect("writes");
        };
        for n in 0..count + 500 {
            let (model, seq_hash) = if n < count { (1, hash_of(n)) } else { (2, hash(n)) };
            let (model_id, seq_hash) = (ModelId::from([model; 32]), SeqHash::from(seq_hash));
            let object_digest = ObjectDigest::from(hash(n));
            let key = ChunkKey { tenant: tenant.clone(), model_id, seq_hash, object_digest };
            if n.is_multiple_of(5) {
                put(Key::Tombstone(key.clone())).await;
                put(Key::Gone(key.clone())).await;
            }
            put(Key::Chunk(key)).await;
        }
        put(Key::Salt { tenant }).await;
        let (objects, layout) = (Arc::clone(store.objects()), store.layout().clone());
        (Lister { objects, layout, is_ordered: true, operation: "listing" }, listings)
    }

    async fn names(listing: Listing) -> Vec<String> {
        listing.map_ok(|(_, meta)| meta.location.to_string()).try_collect().await.expect("lists")
    }

    async fn lists_the_same(count: u64, hash_of: impl Fn(u64) -> [u8; 32], listings_max: u64) {
        let (lister, listings) = filled(count, hash_of).await;
        let all = lister.layout.tenants_prefix();
        let expected = names(lister.paged(&all)).await;
        let before = listings.0.load(Ordering::Relaxed);
        assert!(names(lister.all(&all)).await == expected, "all");
        let used = listings.0.load(Ordering::Relaxed) - before;
        assert!(used <= listings_max, "{used} listings of {} keys", expected.len());
        folders_have_the_same(&lister).await;
    }

    async fn folders_have_the_same(lister: &Lister) {
        let (tenant, model_id) = ("t".parse().expect("a name"), ModelId::from([1; 32]));
        for folder in [
            lister.layout.model_chunks_prefix(&tenant, &model_id),
            lister.layout.model_tombstones_prefix(&tenant, &model_id),
        ] {
            let expected = names(lister.paged(&folder)).await;
            for (digits, is_ordered) in [(vec![0..3, 3..15, 15..16], true), (vec![0..7, 7..16], false)] {
                let lister = Lister { is_ordered, ..lister.clone() };
                let mut listed = Vec::new();
                for digits in digits.clone() {
                    listed.extend(names(lister.hashes(&folder, digits)).await);
                }
                assert!(listed == expected, "{digits:?} {is_ordered} {folder}");
            }
        }
    }

    #[tokio::test]
    async fn long_folders_are_listed_in_slices_and_in_order() {
        lists_the_same(500, hash, 2).await;
        // 5,000 chunks and 2,000 tombstones and notes: one page each, and a half more in slices.
        lists_the_same(5_000, hash, 40).await;
    }

    #[tokio::test]
    async fn chosen_hashes_cost_little() {
        // Several objects of a chunk, at the end of a page among them.
        lists_the_same(1_800, |n| hash(n / 40), 60).await;
        // All hashes but a few begin alike, as low as possible, or in the middle.
        let close_to = |start: [u8; 4]| {
            move |n: u64| {
                let mut hash = hash(n);
                if !n.is_multiple_of(100) {
                    hash[..4].copy_from_slice(&start);
                }
                hash
            }
        };
        for start in [[0, 0, 0, 0], [0, 0, 0, 1], [0x80, 0, 0, 0], [0xff; 4]] {
            lists_the_same(1_800, close_to(start), 200).await;
        }
    }
}
