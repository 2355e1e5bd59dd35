//! Encoding and decoding of pages, and the profiles that this needs.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use kvasir_codec::{
    ChunkDecoder, ChunkEncoder, ChunkInput, KvBuffer, KvSource, STARTER_SINKS, STARTER_TOKENS_MAX,
    STARTER_TOKENS_MIN, container::Head,
};
use kvasir_types::{
    ChainLink, Level, LevelError, Loss, ModelSpec, ObjectKey, Plane, ProfileHash, Quality, RootHash,
};

use super::{
    PageError, PageLayout,
    layout::{PageRows, PageRowsMut},
    payload::{self, Body},
};
use crate::{
    Error,
    model::{Codec, Sample},
    rest::Client,
};

/// Encodes and decodes pages of a layout.
pub(super) struct PageCodec {
    layout: PageLayout,
    quality: Quality,
    codec: Codec,
    /// Pages for a sample, as long as there is no profile and they are too few.
    gathered: Mutex<Vec<Bytes>>,
}

impl std::fmt::Debug for PageCodec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { layout, quality, .. } = self;
        f.debug_struct("PageCodec").field("layout", layout).field("quality", quality).finish_non_exhaustive()
    }
}

impl PageCodec {
    pub(super) fn new(
        layout: PageLayout,
        quality: Quality,
        (model, revision): (&str, &str),
    ) -> Result<Self, Error> {
        layout.check_quality(quality)?;
        let codec = Codec::new(Arc::new(layout.spec(model, revision)), None)?;
        Ok(Self { layout, quality, codec, gathered: Mutex::default() })
    }

    pub(super) fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// What pages are encoded with; nothing where they are stored exactly: as is asked, or because no page so far makes a profile. The pages' sizes were checked.
    ///
    /// # Errors
    /// Where the service cannot be asked for a profile or told one.
    pub(super) async fn encoder_for(
        &self,
        client: &Client,
        pages: &[(ObjectKey, Bytes)],
    ) -> Result<Option<Arc<dyn ChunkEncoder>>, Error> {
        if self.quality == Quality::Exact {
            return Ok(None);
        }
        let sample = match self.codec.writer() {
            Some(_) => Vec::new(),
            None => match self.gather(pages) {
                Some(sample) => sample,
                None => return Ok(None),
            },
        };
        let (layout, spec) = (self.layout, Arc::clone(&self.codec.spec));
        let kv = tokio::task::spawn_blocking(move || Arc::new(joined(&spec, &layout, &sample))).await?;
        // Nobody knows the tokens: as different as they can be, so that the values decide.
        let tokens: Vec<u32> = (0..kv.tokens() as u32).collect();
        let sample = Sample { tokens: &tokens, first_position: STARTER_SINKS as u64, kv: &kv };
        match self.codec.writer_for(client, sample).await {
            Ok(writer) => Ok(Some(Arc::clone(writer.encoder()))),
            // Others will say more.
            Err(Error::Starter(error)) => {
                tracing::debug!(%error, "pages are stored exactly until there is a profile");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Pages for a sample, once there are enough.
    fn gather(&self, pages: &[(ObjectKey, Bytes)]) -> Option<Vec<Bytes>> {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        let of_page = sampled(&self.layout).len();
        let enough = STARTER_TOKENS_MAX.div_ceil(of_page);
        let missing = enough.saturating_sub(gathered.len());
        // Copies: what was given is a part of something larger, perhaps.
        gathered.extend(pages.iter().take(missing).map(|(_, page)| Bytes::copy_from_slice(page)));
        (gathered.len() * of_page >= STARTER_TOKENS_MIN).then(|| std::mem::take(&mut *gathered))
    }

    /// The bytes to store of a page, whose size was checked.
    pub(super) fn encode(
        &self,
        encoder: Option<&dyn ChunkEncoder>,
        key: &ObjectKey,
        page: &[u8],
    ) -> Result<Vec<u8>, PageError> {
        if let Some(encoder) = encoder
            && let Some(chunk) = self.encode_lossy(encoder, page)?
        {
            return Ok(payload::seal(key, &self.layout, Body::Lossy(&chunk)));
        }
        Ok(payload::seal(key, &self.layout, Body::Exact(&payload::exact(&self.layout, page))))
    }

    /// A chunk as far as its coarsest level of the quality; `None` where it has none, or is no smaller than the page.
    fn encode_lossy(&self, encoder: &dyn ChunkEncoder, page: &[u8]) -> Result<Option<Vec<u8>>, PageError> {
        let rows = PageRows { layout: &self.layout, bytes: page };
        let mut chunk = encoder.encode(&ChunkInput {
            tokens: &vec![0; self.layout.tokens()],
            preceding_token: None,
            first_position: 0,
            link: ChainLink::first(RootHash::from([0; 32])),
            beneath: Loss::NONE,
            kv: &rows,
        })?;
        let head = Head::parse(&chunk).map_err(|_| PageError::Malformed)?;
        let error = |level| head.measured().map_or(LevelError::UNKNOWN, |measured| measured.error(level));
        let level =
            (0..head.header.level_count).map(Level).find(|level| error(*level) <= self.quality.error_max());
        let Some(bytes) = level.and_then(|level| head.level_bytes(level)) else { return Ok(None) };
        chunk.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(Some(chunk).filter(|chunk| chunk.len() < page.len()))
    }

    /// Fetches the decoder of a profile; says whether it is there.
    pub(super) async fn fetch_decoder(&self, client: &Client, profile: ProfileHash) -> bool {
        self.codec.decoder_for(client, profile).await.is_some()
    }

    /// The decoder of a profile, if it is there.
    pub(super) fn decoder(&self, profile: &ProfileHash) -> Option<Arc<dyn ChunkDecoder>> {
        self.codec.decoder(profile)
    }

    fn head(&self, chunk: &[u8]) -> Result<Head, PageError> {
        let head = Head::parse(chunk).map_err(|_| PageError::Malformed)?;
        if head.header.model_id != self.codec.model_id || head.tokens.len() != self.layout.tokens() {
            return Err(PageError::OtherLayout);
        }
        Ok(head)
    }

    /// Fills a page of the layout's size from what is stored. [`PageError::NoProfile`] where `decoder_of` has none for its profile.
    pub(super) fn decode(
        &self,
        decoder_of: impl FnOnce(&ProfileHash) -> Option<Arc<dyn ChunkDecoder>>,
        key: &ObjectKey,
        stored: &[u8],
        page: &mut [u8],
    ) -> Result<(), PageError> {
        match payload::open(key, &self.layout, stored)? {
            Body::Exact(body) => payload::fill(&self.layout, body, page),
            Body::Lossy(chunk) => {
                let head = self.head(chunk)?;
                let profile = head.header.profile_hash;
                let decoder = decoder_of(&profile).ok_or(PageError::NoProfile(profile))?;
                let level = head.best_level(chunk.len() as u64).ok_or(PageError::Malformed)?;
                let mut rows = PageRowsMut { layout: &self.layout, bytes: page };
                Ok(decoder.decode(&head, chunk, level, 0..self.layout.tokens(), &mut rows)?)
            }
        }
    }
}

/// Tokens of a page that a sample has: any page may be a context's first.
fn sampled(layout: &PageLayout) -> Range<usize> {
    STARTER_SINKS.min(layout.tokens() - 1)..layout.tokens()
}

/// The KV that a sample has of pages, one after the other.
fn joined(spec: &ModelSpec, layout: &PageLayout, pages: &[Bytes]) -> KvBuffer {
    let tokens = sampled(layout);
    let mut kv = KvBuffer::new(spec, tokens.len() * pages.len());
    for layer in 0..spec.layers.len() {
        for plane in Plane::ALL {
            for head in 0..kv.heads(layer, plane) {
                let rows = kv.rows_mut(layer, plane, head);
                let of_page = rows.len() / pages.len().max(1);
                for (page, rows) in pages.iter().zip(rows.chunks_exact_mut(of_page.max(1))) {
                    PageRows { layout, bytes: page }.read(layer, plane, head, tokens.clone(), rows);
                }
            }
        }
    }
    kv
}
