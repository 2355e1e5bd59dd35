//! Objects by key for engine back ends: batches, out of and into the engine's memory, within a time limit.
//!
//! Each object is a page of the engine's bytes, from one or several parts of its memory, followed by the
//! CRC-32C of its key and these bytes, as u32 little endian. So a loaded page is the one stored under this
//! key, whatever happens between the two memories. If the layout of the pages is declared, they are encoded
//! (`kvasir_client::objects`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kvasir_api::{ErrorCode, ObjectsRequest};
use kvasir_client::{
    objects::{PageError, PageLayout, PageStore},
    rest::Client,
};
use kvasir_types::{KvLayout, Name, ObjectKey, Quality};
use pyo3::{exceptions::PyValueError, prelude::*};
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    error::{Failure, code_of},
    memory::Page,
    model::seconds,
    runtime::run,
    spec,
    store::setting,
};

/// Concurrent requests of one engine: hides round trips, and leaves idle connections for the same number.
const REQUESTS_AT_ONCE: usize = 8;
/// Bytes of the pages in a storing request: they are copied, and a failing request fails for all of them.
const WRITE_BYTES_MAX: usize = 16 << 20;
/// Size of the checksum after a page.
const CHECKSUM_BYTES: usize = 4;

/// The outcome of a key. Python counts by these words, or by the code of the error.
#[derive(Clone)]
enum Outcome {
    /// The page has its bytes.
    Loaded,
    /// The page has its bytes, after a first, damaged read.
    LoadedAgain,
    /// Nothing is stored under the key.
    Missing,
    /// The stored object has another size: it belongs to another layout.
    OtherSize,
    /// The checksum does not match the stored bytes.
    Damaged,
    /// Two reads were damaged in different ways: the stored bytes may be intact.
    DamagedInTransit,
    /// The stored page is sound, but below the quality.
    BelowQuality,
    /// Durable now.
    Stored,
    /// An object was already stored under the key.
    Present,
    /// Not completed within the time limit.
    Late,
    /// The code of an error.
    Failed(String),
}

impl Outcome {
    fn into_text(self) -> String {
        match self {
            Self::Loaded => "loaded".to_owned(),
            Self::LoadedAgain => "loaded_again".to_owned(),
            Self::Missing => "missing".to_owned(),
            Self::OtherSize => "other_size".to_owned(),
            Self::Damaged => "damaged".to_owned(),
            Self::DamagedInTransit => "damaged_in_transit".to_owned(),
            Self::BelowQuality => "below_quality".to_owned(),
            Self::Stored => "stored".to_owned(),
            Self::Present => "present".to_owned(),
            Self::Late => "late".to_owned(),
            Self::Failed(code) => code,
        }
    }
}

/// The CRC-32C of a key, to be continued over the bytes.
fn checksum_of(key: &ObjectKey) -> u32 {
    crc32c::crc32c(key.as_str().as_bytes())
}

fn keys_of(keys: Vec<String>) -> Result<Vec<ObjectKey>, Failure> {
    keys.into_iter().map(ObjectKey::try_from).collect::<Result<_, _>>().map_err(setting)
}

/// Keys and the memory of their pages.
fn pages_of(
    keys: Vec<String>,
    pages: &[Vec<Bound<'_, PyAny>>],
    is_written: bool,
) -> PyResult<(Vec<ObjectKey>, Vec<Page>)> {
    if keys.len() != pages.len() {
        return Err(PyValueError::new_err(format!("{} keys and {} pages", keys.len(), pages.len())));
    }
    let pages = pages.iter().map(|page| Page::borrow(page, is_written)).collect::<PyResult<_>>()?;
    Ok((keys_of(keys)?, pages))
}

/// Runs work that records its outcomes, within a time limit.
async fn within(
    time: Duration,
    outcomes: &mut [Outcome],
    work: impl AsyncFnOnce(&mut [Outcome]),
) -> Vec<String> {
    // When the time is over, the work is dropped: it writes nothing afterwards.
    _ = timeout(time, work(&mut *outcomes)).await;
    outcomes.iter().cloned().map(Outcome::into_text).collect()
}

/// The objects of a namespace.
#[pyclass(frozen, module = "kvasir._kvasir")]
#[derive(Clone)]
pub(crate) struct Objects {
    client: Client,
    namespace: Arc<Name>,
    requests: Arc<Semaphore>,
    /// For pages with a declared layout.
    encoded: Option<PageStore>,
}

impl Objects {
    pub(crate) fn new(client: Client, namespace: Name) -> Self {
        let requests = Arc::new(Semaphore::new(REQUESTS_AT_ONCE));
        Self { client, namespace: Arc::new(namespace), requests, encoded: None }
    }

    /// Stores pages with one request. A key that already has other bytes counts as present: two engines'
    /// values of the same tokens differ in their last bits.
    async fn store_pages(&self, keys: &[ObjectKey], pages: &[Page], outcomes: &mut [Outcome]) {
        // Copies: the request may outlive this future if its time is over, and the engine may then reuse the
        // memory.
        let copies = keys.iter().zip(pages).map(|(key, page)| {
            let mut bytes = Vec::with_capacity(page.len() + CHECKSUM_BYTES);
            page.copy_to(&mut bytes);
            (key.clone(), bytes)
        });
        let written = if let Some(encoded) = &self.encoded {
            let pages: Vec<_> = copies.map(|(key, bytes)| (key, bytes.into())).collect();
            encoded.write(&pages).await
        } else {
            let objects = copies.map(|(key, mut bytes)| {
                let checksum = crc32c::crc32c_append(checksum_of(&key), &bytes);
                bytes.extend_from_slice(&checksum.to_le_bytes());
                (key, bytes.into())
            });
            self.client.write_opaque(&self.namespace, &objects.collect::<Vec<_>>()).await
        };
        match written {
            Ok(written) => {
                for (outcome, written) in outcomes.iter_mut().zip(written) {
                    *outcome = match written.problem {
                        None if written.created => Outcome::Stored,
                        None => Outcome::Present,
                        Some(problem) if problem.code == ErrorCode::ObjectExists => Outcome::Present,
                        Some(problem) => Outcome::Failed(problem.code.as_str().to_owned()),
                    };
                }
            }
            Err(error) => outcomes.fill(Outcome::Failed(code_of(&error))),
        }
    }

    /// Fills pages. A mismatch is read once more: the stored bytes count as bad only if both reads are equal.
    async fn load_pages(&self, keys: &[ObjectKey], pages: &mut [Page], outcomes: &mut [Outcome]) {
        let all: Vec<_> = (0..keys.len()).collect();
        let first = self.read_pages(keys, pages, outcomes, &all).await;
        let places: Vec<_> = first.keys().copied().collect();
        let second = self.read_pages(keys, pages, outcomes, &places).await;
        for (place, misfit) in first {
            if matches!(outcomes[place], Outcome::Loaded) {
                outcomes[place] = Outcome::LoadedAgain;
            } else if second.get(&place) == Some(&misfit) {
                outcomes[place] = misfit.outcome(&pages[place]);
            }
        }
    }

    /// Fills the pages at these indices, and returns those with a mismatch. Continues after a missing key; an
    /// error ends it.
    async fn read_pages(
        &self,
        keys: &[ObjectKey],
        pages: &mut [Page],
        outcomes: &mut [Outcome],
        places: &[usize],
    ) -> BTreeMap<usize, Misfit> {
        let mut misfits = BTreeMap::new();
        let mut left = places.to_vec();
        while !left.is_empty() {
            let batch = left[..left.len().min(ObjectsRequest::KEYS_MAX)].to_vec();
            let batch_keys: Vec<_> = batch.iter().map(|&place| keys[place].clone()).collect();
            // Different replicas send at once, and do not stop where another one misses a key.
            let mut known = vec![false; batch.len()];
            let mut note = |index: usize, read: Result<(), Misfit>| {
                known[index] = true;
                let place = batch[index];
                match read {
                    Ok(()) => outcomes[place] = Outcome::Loaded,
                    // Its checksum matches, so there is nothing to read again.
                    Err(Misfit::Page(PageError::BelowQuality)) => outcomes[place] = Outcome::BelowQuality,
                    Err(misfit) => {
                        outcomes[place] = Outcome::DamagedInTransit;
                        misfits.insert(place, misfit);
                    }
                }
            };
            let read = if let Some(encoded) = &self.encoded {
                let take = |index: usize, page: Result<&[u8], PageError>| {
                    note(index, fill(&mut pages[batch[index]], page));
                };
                encoded.read(&batch_keys, take).await
            } else {
                let mut arrivals: Vec<_> = batch.iter().map(|_| Arrival::default()).collect();
                let take = |index: usize, length: usize, piece: &[u8]| {
                    let place = batch[index];
                    if let Some(read) = arrivals[index].take(&keys[place], &mut pages[place], length, piece) {
                        note(index, read);
                    }
                };
                self.client.read_opaque_pieces(&self.namespace, &batch_keys, take).await
            };
            match read {
                Ok(count) => {
                    known[..count].fill(true);
                    if let Some(missing) = batch.get(count) {
                        (outcomes[*missing], known[count]) = (Outcome::Missing, true);
                    }
                    let unknown =
                        batch.iter().zip(known).filter(|(_, known)| !known).map(|(place, _)| *place);
                    left = unknown.chain(left[batch.len()..].iter().copied()).collect();
                }
                Err(error) => {
                    let code = code_of(&error);
                    for outcome in outcomes.iter_mut().filter(|outcome| matches!(outcome, Outcome::Late)) {
                        *outcome = Outcome::Failed(code.clone());
                    }
                    break;
                }
            }
        }
        misfits
    }
}

#[pymethods]
impl Objects {
    /// The same objects for pages of `layers` layers and `tokens` tokens, with keys and values of `heads`
    /// heads of `dim` elements of a dtype, in the given order of axes: encoded at a quality, for a model of a
    /// name and a revision.
    fn encoded(
        &self,
        dtype: &str,
        shape: (usize, usize, u32, u32),
        order: &str,
        quality: &str,
        model: (String, String),
    ) -> Result<Self, Failure> {
        let ((layers, tokens, heads, dim), (model, revision)) = (shape, model);
        let shape = KvLayout::Gqa { kv_heads: heads, head_dim: dim };
        let layout = PageLayout::new(spec::dtype(dtype)?, shape, layers, tokens, order)?;
        let quality: Quality = quality.parse().map_err(setting)?;
        let (client, namespace) = (self.client.clone(), Name::clone(&self.namespace));
        let encoded = PageStore::new(client, namespace, layout, quality, (&model, &revision))?;
        Ok(Self { encoded: Some(encoded), ..self.clone() })
    }

    /// For each row of keys, the sizes of the pages of its leading keys, up to the first that is not stored;
    /// with gaps, of all. Pages below the quality count as stored, because only their bytes tell it.
    fn find<'py>(
        &self,
        py: Python<'py>,
        rows: Vec<Vec<String>>,
        gaps: bool,
        time: f64,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let rows = rows.into_iter().map(keys_of).collect::<Result<Vec<_>, _>>()?;
        let (client, namespace, time) = (self.client.clone(), Arc::clone(&self.namespace), seconds(time)?);
        run(py, is_async, async move {
            let found = stream::iter(rows).map(|row| find_row(&client, &namespace, row, gaps));
            let found = found.buffered(REQUESTS_AT_ONCE).try_collect::<Vec<_>>();
            timeout(time, found).await.map_err(|_| Failure::Late)?
        })
    }

    /// Fills pages with the objects stored under their keys, and returns each outcome. A page that was not
    /// loaded may contain anything.
    fn load<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        pages: Vec<Vec<Bound<'py, PyAny>>>,
        time: f64,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (keys, mut pages) = pages_of(keys, &pages, true)?;
        let (objects, time) = (self.clone(), seconds(time)?);
        run(py, is_async, async move {
            let mut outcomes = vec![Outcome::Late; keys.len()];
            let load = async |outcomes: &mut [Outcome]| {
                objects.load_pages(&keys, &mut pages, outcomes).await;
            };
            Ok(within(time, &mut outcomes, load).await)
        })
    }

    /// Stores pages under their keys, and returns each outcome.
    fn store<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        pages: Vec<Vec<Bound<'py, PyAny>>>,
        time: f64,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (keys, pages) = pages_of(keys, &pages, false)?;
        let (objects, time) = (self.clone(), seconds(time)?);
        run(py, is_async, async move {
            let mut outcomes = vec![Outcome::Late; keys.len()];
            let store = async |outcomes: &mut [Outcome]| {
                let batches = stream::iter(batches(&keys, &pages, outcomes));
                batches
                    .for_each_concurrent(REQUESTS_AT_ONCE, |(keys, pages, outcomes)| {
                        let objects = &objects;
                        async move {
                            let _request = objects.requests.acquire().await;
                            objects.store_pages(keys, pages, outcomes).await;
                        }
                    })
                    .await;
            };
            Ok(within(time, &mut outcomes, store).await)
        })
    }

    /// Removes the objects under keys, and returns whether each existed.
    fn delete<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        time: f64,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = keys_of(keys)?;
        let (client, namespace, time) = (self.client.clone(), Arc::clone(&self.namespace), seconds(time)?);
        run(py, is_async, async move {
            let deleted = stream::iter(keys).map(|key| {
                let (client, namespace) = (&client, &namespace);
                async move { client.delete_opaque(namespace, &key).await.is_ok() }
            });
            let deleted = deleted.buffered(REQUESTS_AT_ONCE).collect::<Vec<_>>();
            timeout(time, deleted).await.map_err(|_| Failure::Late)
        })
    }
}

/// Sizes of the pages of a row's keys: of the leading ones, or with gaps of all.
async fn find_row(
    client: &Client,
    namespace: &Name,
    row: Vec<ObjectKey>,
    gaps: bool,
) -> Result<Vec<Option<u64>>, Failure> {
    let mut sizes = Vec::with_capacity(row.len());
    for keys in row.chunks(ObjectsRequest::KEYS_MAX) {
        let found = if gaps {
            client.lookup_opaque_each(namespace, keys).await?
        } else {
            client.lookup_opaque(namespace, keys).await?.into_iter().map(Some).collect()
        };
        let is_end = found.len() < keys.len();
        sizes.extend(found.into_iter().map(|bytes| Some(bytes?.saturating_sub(CHECKSUM_BYTES as u64))));
        if is_end {
            break;
        }
    }
    Ok(sizes)
}

/// Keys, pages and outcomes, split into requests.
fn batches<'a>(
    mut keys: &'a [ObjectKey],
    mut pages: &'a [Page],
    mut outcomes: &'a mut [Outcome],
) -> Vec<(&'a [ObjectKey], &'a [Page], &'a mut [Outcome])> {
    let mut batches = Vec::new();
    while !pages.is_empty() {
        let mut bytes = 0;
        let fitting = pages.iter().take(ObjectsRequest::KEYS_MAX).take_while(|page| {
            bytes += page.len();
            bytes <= WRITE_BYTES_MAX
        });
        let count = fitting.count().max(1);
        let (of_keys, of_pages, of_outcomes);
        (of_keys, keys) = keys.split_at(count);
        (of_pages, pages) = pages.split_at(count);
        (of_outcomes, outcomes) = outcomes.split_at_mut(count);
        batches.push((of_keys, of_pages, of_outcomes));
    }
    batches
}

/// A read object that does not match its page, in enough detail to compare two reads.
#[derive(PartialEq)]
enum Misfit {
    /// A mismatch of raw bytes.
    Bytes { length: usize, checksum: u32, told: Vec<u8> },
    /// A mismatch of an encoded page.
    Page(PageError),
}

impl Misfit {
    /// The outcome of a key with the same mismatch twice.
    fn outcome(&self, page: &Page) -> Outcome {
        match self {
            Self::Bytes { length, .. } if *length != page.len() + CHECKSUM_BYTES => Outcome::OtherSize,
            Self::Page(PageError::OtherLayout | PageError::NoPage | PageError::Length { .. }) => {
                Outcome::OtherSize
            }
            Self::Page(PageError::NoProfile(_)) => Outcome::Failed("no_profile".to_owned()),
            // Two reads may be damaged in different ways.
            Self::Page(PageError::Damaged) => Outcome::DamagedInTransit,
            Self::Bytes { .. } | Self::Page(_) => Outcome::Damaged,
        }
    }
}

/// Fills a page with its decoded bytes.
fn fill(page: &mut Page, decoded: Result<&[u8], PageError>) -> Result<(), Misfit> {
    let decoded = decoded.map_err(Misfit::Page)?;
    let (expected, actual) = (decoded.len(), page.len());
    if expected != actual {
        return Err(Misfit::Page(PageError::Length { expected, actual }));
    }
    page.write(0, decoded);
    Ok(())
}

/// An object that arrives in pieces.
#[derive(Default)]
struct Arrival {
    /// Number of bytes received.
    came: usize,
    /// Checksum of its key and the received part of the page.
    checksum: u32,
    /// Received bytes of the checksum after the page.
    told: Vec<u8>,
}

impl Arrival {
    /// Adds the next piece; with the last one, returns whether the object matches the page.
    fn take(
        &mut self,
        key: &ObjectKey,
        page: &mut Page,
        length: usize,
        piece: &[u8],
    ) -> Option<Result<(), Misfit>> {
        let is_page = length == page.len() + CHECKSUM_BYTES;
        if self.came == 0 {
            *self = Self { checksum: checksum_of(key), ..Self::default() };
        }
        if is_page {
            let (bytes, told) = piece.split_at(piece.len().min(page.len().saturating_sub(self.came)));
            page.write(self.came.min(page.len()), bytes);
            self.checksum = crc32c::crc32c_append(self.checksum, bytes);
            self.told.extend_from_slice(told);
        }
        self.came += piece.len();
        if self.came < length {
            return None;
        }
        let Self { checksum, told, .. } = std::mem::take(self);
        let fits = is_page && told == checksum.to_le_bytes();
        Some(if fits { Ok(()) } else { Err(Misfit::Bytes { length, checksum, told }) })
    }
}
