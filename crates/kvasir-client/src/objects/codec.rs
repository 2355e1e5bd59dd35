//! Encoding and decoding of pages, and the required profiles.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use kvasir_codec::{
    ChunkDecoder, ChunkEncoder, ChunkInput, KvBuffer, KvSource, STARTER_SINKS, STARTER_TOKENS_MAX,
    STARTER_TOKENS_MIN,
    container::{Head, Measured},
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
    /// Pages collected for a sample, until there are enough for a profile.
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
        // Exact pages need no profile.
        let codec = Codec::new(Arc::new(layout.spec(model, revision)), None, false)?;
        Ok(Self { layout, quality, codec, gathered: Mutex::default() })
    }

    pub(super) fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// The encoder for pages; `None` if they are stored exactly: on request, or because there are too few
    /// pages for a profile so far. Expects pages of the right size.
    ///
    /// # Errors
    /// If fetching or publishing a profile fails.
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
        // The tokens are unknown: make them all different, so that only the values count.
        let tokens: Vec<u32> = (0..kv.tokens() as u32).collect();
        let sample = Sample { tokens: &tokens, first_position: STARTER_SINKS as u64, kv: &kv };
        match self.codec.writer_for(client, sample).await {
            Ok(writer) => Ok(Some(Arc::clone(writer.encoder()))),
            // Later pages may suffice.
            Err(Error::Starter(error)) => {
                tracing::debug!(%error, "pages are stored exactly until there is a profile");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Collects pages; returns the sample once there are enough.
    fn gather(&self, pages: &[(ObjectKey, Bytes)]) -> Option<Vec<Bytes>> {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        let of_page = sampled(&self.layout).len();
        let enough = STARTER_TOKENS_MAX.div_ceil(of_page);
        let missing = enough.saturating_sub(gathered.len());
        // Copy: the given bytes may be part of a larger buffer.
        gathered.extend(pages.iter().take(missing).map(|(_, page)| Bytes::copy_from_slice(page)));
        (gathered.len() * of_page >= STARTER_TOKENS_MIN).then(|| std::mem::take(&mut *gathered))
    }

    /// The bytes to store for a page of the right size.
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

    /// A chunk up to its coarsest level of the requested quality; `None` if it has none, or is no smaller
    /// than the page.
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
        let level = (0..head.header.level_count).map(Level).find(|level| self.is_good_enough(&head, *level));
        let Some(bytes) = level.and_then(|level| head.level_bytes(level)) else { return Ok(None) };
        chunk.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(Some(chunk).filter(|chunk| chunk.len() < page.len()))
    }

    /// Whether a level is at the quality or better, including the loss beneath it, as for chunks of sessions.
    fn is_good_enough(&self, head: &Head, level: Level) -> bool {
        let error = |measured: &Measured| measured.beneath.max(measured.error(level));
        head.measured().map_or(LevelError::UNKNOWN, error) <= self.quality.error_max()
    }

    /// Fetches the decoder of a profile. Returns whether it is available.
    pub(super) async fn fetch_decoder(&self, client: &Client, profile: ProfileHash) -> bool {
        self.codec.decoder_for(client, profile).await.is_some()
    }

    /// The decoder of a profile, if it is present.
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

    /// Decodes stored bytes into a page of the layout's size. [`PageError::BelowQuality`] if they are not good
    /// enough; [`PageError::NoProfile`] if they are and `decoder_of` has no decoder for their profile.
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
                let level = head.best_level(chunk.len() as u64).ok_or(PageError::Malformed)?;
                if !self.is_good_enough(&head, level) {
                    return Err(PageError::BelowQuality);
                }
                let profile = head.header.profile_hash;
                let decoder = decoder_of(&profile).ok_or(PageError::NoProfile(profile))?;
                let mut rows = PageRowsMut { layout: &self.layout, bytes: page };
                Ok(decoder.decode(&head, chunk, level, 0..self.layout.tokens(), &mut rows)?)
            }
        }
    }
}

/// Tokens of a page to include in a sample: any page may be a context's first.
fn sampled(layout: &PageLayout) -> Range<usize> {
    STARTER_SINKS.min(layout.tokens() - 1)..layout.tokens()
}

/// The KV of the sampled pages, concatenated.
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
