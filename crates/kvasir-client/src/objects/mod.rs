//! Pages of an engine's cache under the engine's keys, encoded if their layout is declared.
//!
//! Engines that name pages by their hashes store bytes without tokens. If the layout of these bytes is
//! declared, the client encodes them like chunks, but without information about tokens and positions:
//! exactly, or at a named quality that is measured for each page. The service only stores the bytes and
//! decodes nothing.
//!
//! ```no_run
//! use kvasir_client::{objects::{PageLayout, PageStore}, rest::{Client, ClientConfig}};
//! use kvasir_types::{KvDtype, KvLayout, Quality};
//!
//! # async fn example(page: bytes::Bytes) -> Result<(), kvasir_client::Error> {
//! let client = Client::new("http://kvasir:7480".parse().expect("a URL"), ClientConfig::default())?;
//! // Requests then go to the replica that keeps the key.
//! client.learn_members().await;
//! let layout = PageLayout::new(KvDtype::Bf16, KvLayout::Gqa { kv_heads: 8, head_dim: 128 }, 32, 256, "2LNHD")?;
//! let namespace = "default".parse().expect("a name");
//! let store = PageStore::new(client, namespace, layout, Quality::Transparent, ("meta-llama/Llama-3.1-8B", "d04e592"))?;
//! let key: kvasir_types::ObjectKey = "7f3a".parse().expect("a key");
//! store.write(&[(key.clone(), page)]).await?;
//! store.read(&[key], |_, page| match page {
//!     Ok(bytes) => println!("{} bytes", bytes.len()),
//!     Err(error) => println!("a miss: {error}"),
//! }).await?;
//! # Ok(())
//! # }
//! ```

mod codec;
mod layout;
mod payload;

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use kvasir_api::{ObjectsRequest, WrittenObject};
use kvasir_codec::{DecodeError, EncodeError};
use kvasir_types::{Name, ObjectKey, ProfileHash, Quality};

use self::codec::PageCodec;
pub use self::layout::PageLayout;
use crate::{Error, limits, rest::Client};

/// Why a page cannot be stored, or why the stored one is not usable and counts as a miss.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// A page of another size was given.
    #[error("the page has {actual} bytes, but its layout has {expected}")]
    Length {
        /// Size by the layout.
        expected: usize,
        /// Size given.
        actual: usize,
    },
    /// Something else is stored under the key.
    #[error("the key holds no page that this version can read")]
    NoPage,
    /// The bytes changed in transit or in a store.
    #[error("the checksum does not match key and bytes")]
    Damaged,
    /// A page of another dtype, shape, or number of layers or tokens.
    #[error("the stored page has another layout; include the layout's parameters in the key")]
    OtherLayout,
    /// A page below the store's quality, or of unknown error. It is not stored again while it is there.
    #[error("the stored page is below the store's quality: use another namespace")]
    BelowQuality,
    /// The checksum is right but the contents are invalid: the writer is faulty.
    #[error("the stored page is malformed")]
    Malformed,
    /// The service does not have the page's profile.
    #[error("cannot fetch profile {0}, which encoded the stored page")]
    NoProfile(ProfileHash),
    /// The page cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The page cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Pages of one layout in a namespace.
#[derive(Debug, Clone)]
pub struct PageStore {
    client: Client,
    namespace: Arc<Name>,
    codec: Arc<PageCodec>,
}

impl PageStore {
    /// Pages of `layout`, stored at `quality` or better. `model` is the name and revision of the model that
    /// computed them: pages of one model share a profile, which is made automatically from the first
    /// [`STARTER_TOKENS_MIN`](kvasir_codec::STARTER_TOKENS_MIN) tokens stored. Until then, and if a profile
    /// would not keep the quality, pages are stored exactly.
    ///
    /// Reads accept pages at `quality` or better. One that another store has written below it is a miss
    /// ([`PageError::BelowQuality`]), though a lookup of its key finds it. Give stores of a higher quality a
    /// namespace of their own.
    ///
    /// # Errors
    /// [`Error::Config`] for a quality that the layout's dtype does not support.
    pub fn new(
        client: Client,
        namespace: Name,
        layout: PageLayout,
        quality: Quality,
        model: (&str, &str),
    ) -> Result<Self, Error> {
        let codec = Arc::new(PageCodec::new(layout, quality, model)?);
        Ok(Self { client, namespace: Arc::new(namespace), codec })
    }

    /// Stores pages and returns the outcome of each; those without a problem are durable. A key's bytes are
    /// immutable.
    ///
    /// # Errors
    /// [`Error::Page`] for a page of another size; those of requests: the outcome of some pages is unknown,
    /// and they may be stored again.
    pub async fn write(&self, pages: &[(ObjectKey, Bytes)]) -> Result<Vec<WrittenObject>, Error> {
        for (_, page) in pages {
            self.codec.layout().check_page(page.len())?;
        }
        let encoder = self.codec.encoder_for(&self.client, pages).await?;
        let written = stream::iter(self.batches(pages.len())).map(|places| async {
            let batch = pages.get(places).unwrap_or_default();
            let encoded = stream::iter(batch.to_vec()).map(|(key, page)| {
                let (codec, encoder) = (Arc::clone(&self.codec), encoder.clone());
                async move {
                    let encode =
                        move || codec.encode(encoder.as_deref(), &key, &page).map(|bytes| (key, bytes));
                    let (key, bytes) = tokio::task::spawn_blocking(encode).await??;
                    Ok::<_, Error>((key, Bytes::from(bytes)))
                }
            });
            let encoded: Vec<_> = encoded.buffered(limits::STORE_CONCURRENCY).try_collect().await?;
            self.client.write_opaque(&self.namespace, &encoded).await
        });
        written.buffered(limits::STORE_CONCURRENCY).try_concat().await
    }

    /// Reads the leading `keys`, up to the first that is not stored, and passes each page with its index in
    /// `keys`: the bytes in the layout, or why they are not available. Pages behind the first that is not stored are
    /// passed as well, where they arrived. Returns the number of leading keys that are stored.
    ///
    /// # Errors
    /// Those of requests. Pages already passed remain valid.
    pub async fn read(
        &self,
        keys: &[ObjectKey],
        mut take: impl FnMut(usize, Result<&[u8], PageError>) + Send,
    ) -> Result<usize, Error> {
        let batches = stream::iter(self.batches(keys.len())).map(|places| async {
            let first = places.start;
            let keys = keys.get(places).unwrap_or_default();
            let mut arrived: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
            let piece = |index: usize, _: usize, piece: &[u8]| {
                arrived[index].get_or_insert_default().extend_from_slice(piece);
            };
            let leading = self.client.read_opaque_pieces(&self.namespace, keys, piece).await?;
            let stored = keys.iter().cloned().zip(arrived).enumerate();
            let stored: Vec<_> =
                stored.filter_map(|(index, (key, stored))| Some((first + index, key, stored?))).collect();
            let pages = stream::iter(stored)
                .map(async |(index, key, stored)| Ok::<_, Error>((index, self.decode(key, stored).await?)));
            let pages: Vec<_> = pages.buffered(limits::DECODE_CONCURRENCY).try_collect().await?;
            Ok::<_, Error>((pages, leading, keys.len()))
        });
        let mut batches = std::pin::pin!(batches.buffered(limits::DECODE_CONCURRENCY));
        let mut count = 0;
        while let Some((pages, leading, asked)) = batches.try_next().await? {
            for (index, page) in pages {
                take(index, page.as_deref().map_err(PageError::clone));
            }
            count += leading;
            if leading < asked {
                break;
            }
        }
        Ok(count)
    }

    async fn decode(&self, key: ObjectKey, stored: Vec<u8>) -> Result<Result<Vec<u8>, PageError>, Error> {
        let stored = Bytes::from(stored);
        match self.decode_as_known(key.clone(), stored.clone()).await? {
            Err(PageError::NoProfile(profile)) if self.codec.fetch_decoder(&self.client, profile).await => {
                self.decode_as_known(key, stored).await
            }
            decoded => Ok(decoded),
        }
    }

    /// Decodes a page with the profiles already present.
    async fn decode_as_known(
        &self,
        key: ObjectKey,
        stored: Bytes,
    ) -> Result<Result<Vec<u8>, PageError>, Error> {
        let codec = Arc::clone(&self.codec);
        let decode = move || {
            let mut page = vec![0; codec.layout().page_bytes()];
            codec.decode(|profile| codec.decoder(profile), &key, &stored, &mut page).map(|()| page)
        };
        Ok(tokio::task::spawn_blocking(decode).await?)
    }

    /// Indices of pages by request: small enough that two requests' bytes fit into memory.
    fn batches(&self, count: usize) -> Vec<Range<usize>> {
        let fitting = limits::PAGES_BYTES_MAX / self.codec.layout().page_bytes().max(1);
        let of_request = fitting.clamp(1, ObjectsRequest::KEYS_MAX);
        (0..count).step_by(of_request).map(|start| start..count.min(start + of_request)).collect()
    }
}

#[cfg(test)]
mod tests;
