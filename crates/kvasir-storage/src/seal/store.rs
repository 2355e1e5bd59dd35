//! The decorator that seals and opens chunk objects.

use std::{collections::HashMap, fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use kvasir_types::Name;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    path::Path,
};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::{
    KeyService,
    keyring::{Keyring, SealError},
    plain_prefix,
    segments::{self, KeyBytes, PLAIN_PREFIX_BYTES, SEGMENT_BYTES, Segments, TAG_BYTES},
    upload::SealedUpload,
};
use crate::{
    layout::{Key, Layout},
    limits,
    store::CallError,
};

/// Seals what is new of tenants with a key, opens what is sealed, passes everything else through.
///
/// Of a tenant with a key a plain object is none: it is not read, and a create is not refused for it. Listings show both
/// forms, under one name, and a deletion takes both.
pub(crate) struct SealedStore {
    inner: Arc<dyn ObjectStore>,
    layout: Layout,
    keyring: Keyring,
    prefixes: Arc<PrefixCache>,
}

/// Data keys and sealed sizes of objects read before: what else would cost one more request each. Another replica may
/// have written an object anew since, under another key: what does not open is read again without the cache.
#[derive(Default)]
pub(super) struct PrefixCache(Mutex<HashMap<Path, PlainPrefix>>);

#[derive(Clone)]
struct PlainPrefix {
    data_key: Arc<KeyBytes>,
    meta: ObjectMeta,
}

impl PrefixCache {
    fn get(&self, place: &Path) -> Option<PlainPrefix> {
        self.0.lock().get(place).cloned()
    }

    fn insert(&self, place: &Path, prefix: PlainPrefix) {
        let mut prefixes = self.0.lock();
        if prefixes.len() >= limits::SEAL_PREFIXES_MAX {
            prefixes.clear();
        }
        prefixes.insert(place.clone(), prefix);
    }

    /// After a write, not before it: a reader beside it could bring the old one back.
    pub(super) fn remove(&self, place: &Path) {
        self.0.lock().remove(place);
    }
}

impl fmt::Debug for PrefixCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefixCache({})", self.0.lock().len())
    }
}

impl SealedStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, layout: Layout, keys: Arc<dyn KeyService>) -> Self {
        let keyring = Keyring::new(keys, layout.clone());
        Self { inner, layout, keyring, prefixes: Arc::default() }
    }

    /// Whose chunk object lies at `location`, if that is one.
    fn owner(&self, location: &Path) -> Option<Name> {
        match self.layout.parse(location) {
            Some(Key::Chunk(chunk)) => Some(chunk.tenant),
            _ => None,
        }
    }

    /// Whose new object `location` is, if it is to be sealed.
    fn sealing(&self, location: &Path) -> Option<Name> {
        self.owner(location).filter(|tenant| self.keyring.service.current(tenant).is_some())
    }

    /// A key for a new object at `place`, and the prefix that holds it.
    async fn new_prefix(
        &self,
        tenant: &Name,
        place: &Path,
    ) -> Result<(Segments, [u8; PLAIN_PREFIX_BYTES as usize])> {
        let (id, tenant_key) = self.keyring.newest(&*self.inner, tenant).await?;
        let data_key: KeyBytes = Zeroizing::new(rand::random());
        let prefix = plain_prefix::write(&id, &tenant_key, &data_key, place.as_ref());
        Ok((Segments::new(&data_key, place.as_ref()), prefix))
    }

    async fn prefix(&self, tenant: &Name, place: &Path) -> Result<PlainPrefix> {
        if let Some(prefix) = self.prefixes.get(place) {
            return Ok(prefix);
        }
        let options =
            GetOptions { range: Some(GetRange::Bounded(0..PLAIN_PREFIX_BYTES)), ..GetOptions::default() };
        let found = match self.inner.get_opts(place, options).await {
            Err(error) => return Err(self.unless_cut(place, error).await),
            found => found?,
        };
        let meta = found.meta.clone();
        let bytes = found.bytes().await?;
        let id = plain_prefix::tenant_key_id(&bytes).ok_or(SealError::Altered)?;
        let tenant_key = self.keyring.key(&*self.inner, tenant, &id).await?;
        let data_key =
            plain_prefix::data_key(&bytes, &tenant_key, place.as_ref()).ok_or(SealError::Altered)?;
        let prefix = PlainPrefix { data_key: Arc::new(data_key), meta };
        self.prefixes.insert(place, prefix.clone());
        Ok(prefix)
    }

    /// Why a prefix could not be read. Of an object that is shorter than one, stores refuse the range in words of their own.
    async fn unless_cut(&self, place: &Path, error: Error) -> Error {
        if CallError::of(&error).is_some() || matches!(error, Error::NotFound { .. }) {
            return error;
        }
        match self.inner.head(place).await {
            Ok(meta) if segments::plain_bytes(meta.size).is_none() => SealError::Altered.into(),
            _ => error,
        }
    }

    /// Reads the sealed object at `place` as if it were the plain one at `location`; once more where it does not open, for
    /// it may have been written anew since its prefix was read.
    async fn read(
        &self,
        tenant: &Name,
        place: &Path,
        location: &Path,
        options: GetOptions,
    ) -> Result<GetResult> {
        match self.read_once(tenant, place, location, options.clone()).await {
            Err(error) => {
                self.prefixes.remove(place);
                match SealError::of(&error) {
                    Some(SealError::Altered) => self.read_once(tenant, place, location, options).await,
                    _ => Err(error),
                }
            }
            read => read,
        }
    }

    /// Asks for the object at `location`. Needs no key: the sealed size tells the plain one.
    async fn head_opts(&self, tenant: &Name, location: &Path, options: GetOptions) -> Result<GetResult> {
        if self.keyring.service.current(tenant).is_none() {
            match self.inner.get_opts(location, options.clone()).await {
                Err(Error::NotFound { .. }) => {}
                plain => return plain,
            }
        }
        let mut found = self.inner.get_opts(&sealed_place(location), options).await?;
        found.meta = presented(found.meta);
        found.range = 0..found.meta.size;
        Ok(found)
    }

    async fn read_once(
        &self,
        tenant: &Name,
        place: &Path,
        location: &Path,
        options: GetOptions,
    ) -> Result<GetResult> {
        let prefix = self.prefix(tenant, place).await?;
        let sealed = prefix.meta.size;
        let size = segments::plain_bytes(sealed).ok_or(SealError::Altered)?;
        let mut meta = ObjectMeta { location: location.clone(), size, ..prefix.meta.clone() };
        let range = match &options.range {
            None => 0..size,
            Some(range) => range
                .as_range(size)
                .map_err(|e| Error::Generic { store: "sealed", source: e.to_string().into() })?,
        };
        let wanted = segments::covering(&range);
        let inner = GetRange::Bounded(segments::located(&wanted, sealed));
        let found = self.inner.get_opts(place, GetOptions { range: Some(inner), ..options }).await?;
        if found.meta.size != sealed {
            return Err(SealError::Altered.into());
        }
        (meta.e_tag, meta.last_modified) = (found.meta.e_tag.clone(), found.meta.last_modified);
        let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
        let opening = Opening {
            segments: Segments::new(&prefix.data_key, place.as_ref()),
            next: wanted.start,
            end: wanted.end,
            last: size.div_ceil(SEGMENT_BYTES).max(1) - 1,
            size,
            range: range.clone(),
        };
        // One answer of the store is of one write: where its first segment opens, the key is that of the others.
        let mut opened = opening.stream(found.into_stream()).boxed();
        let first = opened.try_next().await?;
        let opened = futures::stream::iter(first.map(Ok)).chain(opened);
        let payload = GetResultPayload::Stream(opened.boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }
}

/// Opens segments as they arrive and gives out the part of them that was asked for.
struct Opening {
    segments: Segments,
    next: u64,
    end: u64,
    last: u64,
    size: u64,
    range: Range<u64>,
}

impl Opening {
    fn stream(
        self,
        sealed: impl Stream<Item = Result<Bytes>> + Send + 'static,
    ) -> impl Stream<Item = Result<Bytes>> + Send {
        let state = (self, Box::pin(sealed), BytesMut::new());
        futures::stream::try_unfold(state, |(mut this, mut sealed, mut held)| async move {
            while this.next < this.end {
                let plain = SEGMENT_BYTES.min(this.size - this.next * SEGMENT_BYTES);
                let wanted = (plain + TAG_BYTES) as usize;
                while held.len() < wanted {
                    // A body that ends early is the layer below's to resume; here it is an altered object.
                    let more = sealed.try_next().await?.ok_or(SealError::Altered)?;
                    held.extend_from_slice(&more);
                }
                let mut segment = held.split_to(wanted);
                let start = this.next * SEGMENT_BYTES;
                this.segments
                    .open(this.next, this.next == this.last, &mut segment)
                    .ok_or(SealError::Altered)?;
                this.next += 1;
                let from = this.range.start.saturating_sub(start).min(plain) as usize;
                let to = this.range.end.saturating_sub(start).min(plain) as usize;
                let piece = segment.freeze().slice(from..to);
                if !piece.is_empty() {
                    return Ok(Some((piece, (this, sealed, held))));
                }
            }
            Ok(None)
        })
    }
}

/// Where the sealed form of the object at `location` lies: `.kvs` instead of `.kvc`.
fn sealed_place(location: &Path) -> Path {
    match location.as_ref().strip_suffix(".kvc") {
        Some(stem) => Path::from(format!("{stem}.kvs")),
        None => location.clone(),
    }
}

/// A listed object as the layers above know it.
fn presented(mut meta: ObjectMeta) -> ObjectMeta {
    if let Some(stem) = meta.location.as_ref().strip_suffix(".kvs") {
        meta.location = Path::from(format!("{stem}.kvc"));
        // What has no possible size is shown as it is: reading it says that it was altered.
        meta.size = segments::plain_bytes(meta.size).unwrap_or(meta.size);
    }
    meta
}

impl fmt::Debug for SealedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl fmt::Display for SealedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for SealedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let Some(tenant) = self.sealing(location) else {
            return self.inner.put_opts(location, payload, opts).await;
        };
        let place = sealed_place(location);
        let (segments, prefix) = self.new_prefix(&tenant, &place).await?;
        let plain = Bytes::from(payload);
        let mut sealed = Vec::with_capacity(segments::sealed_bytes(plain.len() as u64) as usize);
        sealed.extend_from_slice(&prefix);
        let last = (plain.len() as u64).div_ceil(SEGMENT_BYTES).max(1) - 1;
        for n in 0..=last {
            let start = (n * SEGMENT_BYTES) as usize;
            let end = plain.len().min(start + SEGMENT_BYTES as usize);
            segments.seal(n, n == last, &plain[start..end], &mut sealed);
        }
        let written = self.inner.put_opts(&place, PutPayload::from(sealed), opts).await;
        self.prefixes.remove(&place);
        written
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let Some(tenant) = self.sealing(location) else {
            return self.inner.put_multipart_opts(location, opts).await;
        };
        let place = sealed_place(location);
        let (segments, prefix) = self.new_prefix(&tenant, &place).await?;
        let inner = self.inner.put_multipart_opts(&place, opts).await?;
        let written = (Arc::clone(&self.prefixes), place);
        Ok(Box::new(SealedUpload::new(inner, segments, &prefix, written)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let Some(tenant) = self.owner(location) else {
            return self.inner.get_opts(location, options).await;
        };
        if options.head {
            return self.head_opts(&tenant, location, options).await;
        }
        let place = sealed_place(location);
        if self.keyring.service.current(&tenant).is_some() {
            // A plain object has no tag: whoever can write to the bucket could have put it there.
            return self.read(&tenant, &place, location, options).await;
        }
        match self.inner.get_opts(location, options.clone()).await {
            Err(missing @ Error::NotFound { .. }) => {
                match self.read(&tenant, &place, location, options).await {
                    Err(Error::NotFound { .. }) => Err(missing),
                    result => result,
                }
            }
            result => result,
        }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, layout) = (Arc::clone(&self.inner), self.layout.clone());
        let deleted = locations.then(move |location| {
            let (inner, layout) = (Arc::clone(&inner), layout.clone());
            async move {
                let location = location?;
                let plain = inner.delete(&location).await;
                if !matches!(layout.parse(&location), Some(Key::Chunk(_))) {
                    return plain.map(|()| location);
                }
                // One of the two forms is there, rarely both; some stores say so and some do not.
                match (inner.delete(&sealed_place(&location)).await, plain) {
                    (Ok(()) | Err(Error::NotFound { .. }), Ok(()))
                    | (Ok(()), Err(Error::NotFound { .. })) => Ok(location),
                    (Err(error @ Error::NotFound { .. }), Err(Error::NotFound { .. })) => Err(error),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                }
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix).map_ok(presented).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        // The sealed form is the later by name: behind it neither form comes again.
        self.inner.list_with_offset(prefix, &sealed_place(offset)).map_ok(presented).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        listed.objects = listed.objects.into_iter().map(presented).collect();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        if self.sealing(from).is_some() || self.sealing(to).is_some() {
            return Err(SealError::Copied.into());
        }
        self.inner.copy_opts(from, to, options).await
    }
}
