//! The decorator that seals and opens chunk objects.

use std::{fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use kvasir_types::Name;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    path::Path,
};

use super::{
    boxes::{Purpose, is_box, object_key},
    keyring::{Keyring, SealError},
    plain_prefix,
    segments::{self, KeyBytes, PLAIN_PREFIX_BYTES, SEGMENT_BYTES, Segments, TAG_BYTES},
    upload::SealedUpload,
};
use crate::{
    CallError,
    layout::{ChunkKey, Key, PartKey},
    limits,
};

/// Seals new objects of tenants with a key, opens sealed objects, and passes everything else through. Without
/// a key service it only refuses to write for tenants that are sealed elsewhere.
///
/// For a tenant with a key, a plain object counts as absent: it is not read, and does not block a create.
/// Listings show both forms under one name, and a deletion removes both. Records keep their names, and a
/// plain one is an error.
pub(crate) struct SealedStore {
    inner: Arc<dyn ObjectStore>,
    keyring: Arc<Keyring>,
}

impl SealedStore {
    pub(crate) fn new(keyring: Arc<Keyring>) -> Self {
        Self { inner: Arc::clone(&keyring.store), keyring }
    }

    /// The tenant of the chunk object at `location`, if it is one and there are keys at all.
    fn owner(&self, location: &Path) -> Option<Name> {
        self.keyring.service()?;
        match self.keyring.layout.parse(location) {
            Some(Key::Chunk(ChunkKey { tenant, .. }) | Key::Part(PartKey { tenant, .. })) => Some(tenant),
            _ => None,
        }
    }

    /// The tenant and purpose of the record at `location`.
    fn record(&self, location: &Path) -> Option<(Name, Purpose)> {
        match self.keyring.layout.parse(location)? {
            Key::Salt { tenant } | Key::SaltProposal { tenant, .. } => Some((tenant, Purpose::Salt)),
            Key::SaltRotation { tenant, .. } => Some((tenant, Purpose::SaltRotation)),
            Key::Context { tenant, .. } => Some((tenant, Purpose::Context)),
            _ => None,
        }
    }

    /// The tenant of the new chunk object `location`, if it must be sealed.
    async fn sealing(&self, location: &Path) -> Result<Option<Name>> {
        match self.keyring.layout.parse(location) {
            Some(Key::Chunk(ChunkKey { tenant, .. }) | Key::Part(PartKey { tenant, .. })) => {
                Ok((!self.keyring.is_plain(&tenant).await?).then_some(tenant))
            }
            _ => Ok(None),
        }
    }

    /// The sealer of the new object at `place`, and its prefix.
    async fn sealer(
        &self,
        tenant: &Name,
        place: &Path,
    ) -> Result<(Segments, [u8; PLAIN_PREFIX_BYTES as usize])> {
        let (id, tenant_key) = self.keyring.newest(tenant).await?;
        Ok((self.segments(&tenant_key, place), plain_prefix::write(&id)))
    }

    fn segments(&self, tenant_key: &KeyBytes, place: &Path) -> Segments {
        Segments::new(&object_key(tenant_key, self.keyring.place(place)))
    }

    /// The opener of the object at `place` with this prefix.
    async fn opener(&self, tenant: &Name, place: &Path, prefix: &[u8]) -> Result<Segments> {
        let id = plain_prefix::tenant_key_id(prefix).ok_or(SealError::Altered)?;
        Ok(self.segments(&*self.keyring.key(tenant, &id).await?, place))
    }

    async fn prefix(&self, place: &Path) -> Result<Bytes> {
        let range = Some(GetRange::Bounded(0..PLAIN_PREFIX_BYTES));
        self.inner.get_opts(place, GetOptions { range, ..GetOptions::default() }).await?.bytes().await
    }

    /// The cause of a failed read. Stores report a range beyond a truncated object in different ways.
    async fn unless_cut(&self, place: &Path, error: Error) -> Error {
        if CallError::of(&error).is_some() || matches!(error, Error::NotFound { .. }) {
            return error;
        }
        match self.inner.head(place).await {
            Ok(meta) if segments::plain_bytes(meta.size).is_none() => SealError::Altered.into(),
            _ => error,
        }
    }

    /// Requests the metadata of the object at `location`. Needs no key: the plain size follows from the
    /// sealed one.
    async fn head_opts(&self, tenant: &Name, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !self.keyring.seals(tenant) {
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

    /// Reads the sealed object at `place` as if it were the plain one at `location`.
    async fn read(
        &self,
        tenant: &Name,
        place: &Path,
        location: &Path,
        options: GetOptions,
    ) -> Result<GetResult> {
        let asked = match options.range.clone() {
            // The size determines where the last bytes begin.
            Some(suffix @ GetRange::Suffix(_)) => {
                let sealed = self.inner.head(place).await?.size;
                let size = segments::plain_bytes(sealed).ok_or(SealError::Altered)?;
                Some(GetRange::Bounded(suffix.as_range(size).map_err(impossible)?))
            }
            asked => asked,
        };
        let (first, inner) = match &asked {
            Some(GetRange::Bounded(range)) => {
                let wanted = segments::covering(range);
                let inner = segments::start(wanted.start)..segments::start(wanted.end);
                (wanted.start, Some(GetRange::Bounded(inner)))
            }
            Some(GetRange::Offset(offset)) => {
                let first = offset / SEGMENT_BYTES;
                (first, Some(GetRange::Offset(segments::start(first))))
            }
            _ => (0, None),
        };
        let found = match self.inner.get_opts(place, GetOptions { range: inner, ..options }).await {
            Err(error) => return Err(self.unless_cut(place, error).await),
            Ok(found) => found,
        };
        let size = segments::plain_bytes(found.meta.size).ok_or(SealError::Altered)?;
        let range = match &asked {
            None => 0..size,
            Some(asked) => asked.as_range(size).map_err(impossible)?,
        };
        let mut meta = found.meta.clone();
        (meta.location, meta.size) = (location.clone(), size);
        let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
        let mut opening = Opening {
            next: first,
            end: segments::covering(&range).end,
            last: size.div_ceil(SEGMENT_BYTES).max(1) - 1,
            size,
            range: range.clone(),
            held: BytesMut::new(),
            sealed: found.into_stream(),
        };
        let segments = self.opener_of(tenant, place, &mut opening).await?;
        let payload = GetResultPayload::Stream(opening.stream(segments).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    /// The opener of the object being read, determined with its first segment.
    async fn opener_of(&self, tenant: &Name, place: &Path, opening: &mut Opening) -> Result<Segments> {
        if opening.next == 0 {
            opening.hold(PLAIN_PREFIX_BYTES as usize).await?;
            let prefix = opening.held.split_to(PLAIN_PREFIX_BYTES as usize);
            let segments = self.opener(tenant, place, &prefix).await?;
            opening.hold_segment().await?;
            return if opening.opens(&segments) { Ok(segments) } else { Err(SealError::Altered.into()) };
        }
        opening.hold_segment().await?;
        // There is rarely another key than the known one: the prefix need not be fetched.
        for key in self.keyring.opened(tenant) {
            let segments = self.segments(&key, place);
            if opening.opens(&segments) {
                return Ok(segments);
            }
        }
        let segments = self.opener(tenant, place, &self.prefix(place).await?).await?;
        if opening.opens(&segments) { Ok(segments) } else { Err(SealError::Altered.into()) }
    }

    /// Reads a whole record, and opens it if it belongs to a sealed tenant.
    async fn read_record(
        &self,
        (tenant, purpose): (Name, Purpose),
        location: &Path,
        options: GetOptions,
    ) -> Result<GetResult> {
        let altered = || SealError::AlteredRecord { place: location.clone() };
        let mut outcome = Err(altered().into());
        // One bad read may be a transfer error; two mean that the store's copy is bad.
        for _ in 0..limits::SEALED_RECORD_READS {
            let whole = GetOptions { range: None, ..options.clone() };
            let found = self.inner.get_opts(location, whole).await?;
            if found.meta.size > limits::SEALED_RECORD_BYTES_MAX {
                return Err(altered().into());
            }
            let (mut meta, attributes, extensions) =
                (found.meta.clone(), found.attributes.clone(), found.extensions.clone());
            let bytes = found.bytes().await?;
            let opened = if is_box(&bytes) {
                self.keyring.open(&tenant, purpose, self.keyring.place(location), &bytes).await
            } else if !self.keyring.seals(&tenant) {
                Ok(bytes)
            } else {
                let (place, folder) = (location.clone(), self.keyring.layout.tenant(&tenant));
                Err(SealError::Plain { tenant: tenant.clone(), place, folder }.into())
            };
            match opened {
                Ok(bytes) => {
                    meta.size = bytes.len() as u64;
                    let range = 0..meta.size;
                    let payload = GetResultPayload::Stream(futures::stream::iter([Ok(bytes)]).boxed());
                    return Ok(GetResult { payload, meta, range, attributes, extensions });
                }
                Err(error) if matches!(SealError::of(&error), Some(SealError::Altered)) => {}
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }
}

impl SealedStore {
    /// Converts listed objects for the layers above: without keys, sealed ones belong to no tenant.
    fn presenting(&self) -> fn(ObjectMeta) -> ObjectMeta {
        if self.keyring.service().is_some() { presented } else { std::convert::identity }
    }
}

fn impossible(error: impl fmt::Display) -> Error {
    Error::Generic { store: "sealed", source: error.to_string().into() }
}

/// Opens segments as they arrive and returns the requested part of them.
struct Opening {
    next: u64,
    end: u64,
    last: u64,
    size: u64,
    range: Range<u64>,
    /// Sealed bytes that arrived and are not opened yet.
    held: BytesMut,
    sealed: BoxStream<'static, Result<Bytes>>,
}

impl Opening {
    async fn hold(&mut self, bytes: usize) -> Result<()> {
        while self.held.len() < bytes {
            // The layer below resumes a body that ends early; if it still ends early here, the object was
            // altered.
            let more = self.sealed.try_next().await?.ok_or(SealError::Altered)?;
            self.held.extend_from_slice(&more);
        }
        Ok(())
    }

    /// Plain bytes of the next segment.
    fn plain(&self) -> u64 {
        SEGMENT_BYTES.min(self.size.saturating_sub(self.next * SEGMENT_BYTES))
    }

    async fn hold_segment(&mut self) -> Result<()> {
        self.hold((self.plain() + TAG_BYTES) as usize).await
    }

    /// Whether the next, buffered segment opens.
    fn opens(&self, segments: &Segments) -> bool {
        let mut sealed = self.held[..(self.plain() + TAG_BYTES) as usize].to_vec();
        segments.open(self.next, self.next == self.last, &mut sealed).is_some()
    }

    fn stream(self, segments: Segments) -> impl Stream<Item = Result<Bytes>> + Send {
        futures::stream::try_unfold((self, segments), |(mut this, segments)| async move {
            while this.next < this.end {
                let plain = this.plain();
                this.hold_segment().await?;
                let mut segment = this.held.split_to((plain + TAG_BYTES) as usize);
                let start = this.next * SEGMENT_BYTES;
                segments.open(this.next, this.next == this.last, &mut segment).ok_or(SealError::Altered)?;
                this.next += 1;
                let from = this.range.start.saturating_sub(start).min(plain) as usize;
                let to = this.range.end.saturating_sub(start).min(plain) as usize;
                let piece = segment.freeze().slice(from..to);
                if !piece.is_empty() {
                    return Ok(Some((piece, (this, segments))));
                }
            }
            Ok(None)
        })
    }
}

/// The path of the sealed form of the object at `location`: `.kvs` instead of `.kvc`.
fn sealed_place(location: &Path) -> Path {
    match location.as_ref().strip_suffix(".kvc") {
        Some(stem) => Path::from(format!("{stem}.kvs")),
        None => location.clone(),
    }
}

/// Characters of the shortest id that names a folder of sealed objects: a UUID.
const ID_CHARACTERS_MIN: usize = 36;

/// A listed object in its form for the layers above.
fn presented(mut meta: ObjectMeta) -> ObjectMeta {
    // Not names that look like it, as of a namespace: sealed objects lie below hashes and ids.
    let is_below_id =
        |stem: &&str| stem.rsplit('/').nth(1).is_some_and(|folder| folder.len() >= ID_CHARACTERS_MIN);
    if let Some(stem) = meta.location.as_ref().strip_suffix(".kvs").filter(is_below_id) {
        meta.location = Path::from(format!("{stem}.kvc"));
        // An object of an impossible size is shown unchanged: reading it reports that it was altered.
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
        if let Some((tenant, purpose)) = self.record(location) {
            if self.keyring.is_plain(&tenant).await? {
                return self.inner.put_opts(location, payload, opts).await;
            }
            let (place, plain) = (self.keyring.place(location), Bytes::from(payload));
            let sealed = self.keyring.seal(&tenant, purpose, place, &plain).await?;
            return self.inner.put_opts(location, PutPayload::from(sealed), opts).await;
        }
        let Some(tenant) = self.sealing(location).await? else {
            return self.inner.put_opts(location, payload, opts).await;
        };
        let place = sealed_place(location);
        let (segments, prefix) = self.sealer(&tenant, &place).await?;
        let plain = Bytes::from(payload);
        let mut sealed = Vec::with_capacity(segments::sealed_bytes(plain.len() as u64) as usize);
        sealed.extend_from_slice(&prefix);
        let last = (plain.len() as u64).div_ceil(SEGMENT_BYTES).max(1) - 1;
        for n in 0..=last {
            let start = (n * SEGMENT_BYTES) as usize;
            let end = plain.len().min(start + SEGMENT_BYTES as usize);
            segments.seal(n, n == last, &plain[start..end], &mut sealed);
        }
        self.inner.put_opts(&place, PutPayload::from(sealed), opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let Some(tenant) = self.sealing(location).await? else {
            return self.inner.put_multipart_opts(location, opts).await;
        };
        let place = sealed_place(location);
        let (segments, prefix) = self.sealer(&tenant, &place).await?;
        let inner = self.inner.put_multipart_opts(&place, opts).await?;
        Ok(Box::new(SealedUpload::new(inner, segments, &prefix)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !options.head
            && let Some(record) = self.record(location)
        {
            return self.read_record(record, location, options).await;
        }
        let Some(tenant) = self.owner(location) else {
            return self.inner.get_opts(location, options).await;
        };
        if options.head {
            return self.head_opts(&tenant, location, options).await;
        }
        let place = sealed_place(location);
        if self.keyring.seals(&tenant) {
            // A plain object has no tag: anyone with write access to the bucket could have put it there.
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
        if self.keyring.service().is_none() {
            return self.inner.delete_stream(locations);
        }
        let (inner, layout) = (Arc::clone(&self.inner), self.keyring.layout.clone());
        let deleted = locations.then(move |location| {
            let (inner, layout) = (Arc::clone(&inner), layout.clone());
            async move {
                let location = location?;
                let plain = inner.delete(&location).await;
                if !matches!(layout.parse(&location), Some(Key::Chunk(_) | Key::Part(_))) {
                    return plain.map(|()| location);
                }
                // One of the two forms exists, rarely both; some stores report a missing object and some do
                // not.
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
        let presented = self.presenting();
        self.inner.list(prefix).map_ok(presented).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        // The sealed form sorts after the plain one: after it, neither form follows.
        let presented = self.presenting();
        self.inner.list_with_offset(prefix, &sealed_place(offset)).map_ok(presented).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        listed.objects = listed.objects.into_iter().map(self.presenting()).collect();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        for location in [from, to] {
            if self.sealing(location).await?.is_some() {
                return Err(SealError::Copied.into());
            }
        }
        self.inner.copy_opts(from, to, options).await
    }
}
