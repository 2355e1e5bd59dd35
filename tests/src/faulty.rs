//! An object store that goes wrong in every way we can think of, by a seed.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory,
    path::Path,
};

/// Ways to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// Refused before anything happened: 5xx, SlowDown, a reset connection.
    Before,
    /// It took effect, and the answer was lost.
    After,
    /// The body ends early as if it were whole.
    Short,
    /// The body breaks off with an error.
    Reset,
    /// The body goes on behind its end.
    Long,
    /// A byte is flipped.
    Flip,
    /// Another range of the same object.
    OtherRange,
    /// The same range of another object.
    OtherObject,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Before,
        Self::After,
        Self::Short,
        Self::Reset,
        Self::Long,
        Self::Flip,
        Self::OtherRange,
        Self::OtherObject,
    ];

    fn corrupts(self) -> bool {
        matches!(self, Self::Short | Self::Long | Self::Flip | Self::OtherRange | Self::OtherObject)
    }
}

/// Deterministic numbers.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }

    /// True in so many of a thousand cases.
    pub fn chance(&mut self, per_mille: usize) -> bool {
        self.below(1_000) < per_mille
    }
}

#[derive(Debug)]
struct Plan {
    dice: Dice,
    per_mille: usize,
    injected: [u64; Fault::ALL.len()],
    trace: blake3::Hasher,
    requests: u64,
}

/// The store. Clones share everything.
#[derive(Debug, Clone)]
pub struct FaultyStore {
    inner: Arc<InMemory>,
    plan: Arc<Mutex<Plan>>,
}

impl FaultyStore {
    /// Goes wrong in `per_mille` of a thousand requests.
    pub fn new(seed: u64, per_mille: usize) -> Self {
        let plan = Plan {
            dice: Dice::new(seed),
            per_mille,
            injected: [0; Fault::ALL.len()],
            trace: blake3::Hasher::new(),
            requests: 0,
        };
        Self { inner: Arc::default(), plan: Arc::new(Mutex::new(plan)) }
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.plan.lock().expect("not poisoned")
    }

    /// From now on nothing goes wrong.
    pub fn heal(&self) {
        self.plan().per_mille = 0;
    }

    /// How often each fault was injected, in the order of [`Fault::ALL`].
    pub fn injected(&self) -> [u64; Fault::ALL.len()] {
        self.plan().injected
    }

    /// Bodies that were handed out wrong.
    pub fn corruptions(&self) -> u64 {
        let injected = self.injected();
        Fault::ALL.iter().zip(injected).filter(|(fault, _)| fault.corrupts()).map(|(_, n)| n).sum()
    }

    /// Requests so far, and a hash of them and of all that went wrong, in order: equal for equal seeds.
    pub fn trace(&self) -> (u64, String) {
        let plan = self.plan();
        (plan.requests, plan.trace.finalize().to_hex().to_string())
    }

    /// The truth.
    pub fn inner(&self) -> &InMemory {
        &self.inner
    }

    /// Decides about a request, after a while in which others go on.
    async fn next(&self, what: &str, path: &Path, possible: &[Fault]) -> Option<Fault> {
        let (fault, delay) = {
            let mut plan = self.plan();
            let per_mille = plan.per_mille;
            let hit = plan.dice.chance(per_mille);
            let fault = hit.then(|| possible[plan.dice.below(possible.len())]);
            let delay = plan.dice.below(40);
            plan.requests += 1;
            // Probes and journals are named at random: their names are no part of the trace.
            let named = path
                .parts()
                .next_back()
                .filter(|_| path.as_ref().contains("/c/") || path.as_ref().contains("/d/"));
            let name = named.map(|part| part.as_ref().to_owned()).unwrap_or_default();
            plan.trace.update(format!("{what} {name} {fault:?} {delay};").as_bytes());
            if let Some(fault) = fault {
                let at = Fault::ALL.iter().position(|f| *f == fault).expect("one of all");
                plan.injected[at] += 1;
            }
            (fault, delay)
        };
        tokio::time::sleep(Duration::from_millis(delay as u64)).await;
        fault
    }

    async fn around<T>(
        &self,
        what: &str,
        path: &Path,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match self.next(what, path, &[Fault::Before, Fault::After]).await {
            Some(Fault::Before) => Err(failure("503")),
            Some(_) => request.await.and(Err(failure("the answer was lost"))),
            None => request.await,
        }
    }

    async fn spoil(&self, path: &Path, bytes: Bytes, range: &Range<u64>, fault: Fault) -> Vec<Result<Bytes>> {
        let mut bytes = bytes.to_vec();
        match fault {
            Fault::Short => bytes.truncate(self.plan().dice.below(bytes.len())),
            Fault::Reset => {
                bytes.truncate(bytes.len() / 2);
                return vec![Ok(bytes.into()), Err(failure("reset"))];
            }
            Fault::Long => bytes.extend(b"more"),
            Fault::Flip if !bytes.is_empty() => {
                let mut plan = self.plan();
                let (at, bit) = (plan.dice.below(bytes.len()), plan.dice.below(8));
                bytes[at] ^= 1 << bit;
            }
            Fault::OtherRange => {
                let turn = 1 + self.plan().dice.below(bytes.len().saturating_sub(1));
                let turn = turn.min(bytes.len());
                bytes.rotate_left(turn);
            }
            Fault::OtherObject => {
                let mut others: Vec<_> =
                    self.inner.list(None).try_collect::<Vec<_>>().await.unwrap_or_default();
                others.retain(|m| m.location != *path && m.location.as_ref().ends_with(".kvc"));
                others.sort_by(|a, b| a.location.cmp(&b.location));
                let at = self.plan().dice.below(others.len());
                if let Some(other) = others.get(at) {
                    let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
                    if let Ok(found) = self.inner.get_opts(&other.location, options).await {
                        let mut other = found.bytes().await.unwrap_or_default().to_vec();
                        // As long as was asked for, so that lengths give nothing away.
                        other.resize(bytes.len(), 0);
                        bytes = other;
                    }
                }
            }
            Fault::Before | Fault::After | Fault::Flip => {}
        }
        vec![Ok(bytes.into())]
    }
}

fn failure(what: &'static str) -> Error {
    Error::Generic { store: "faulty", source: what.into() }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.around("put", location, self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.around("multipart", location, self.inner.put_multipart_opts(location, opts)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let is_head = options.head;
        let possible = if is_head { &[Fault::Before][..] } else { &Fault::ALL };
        let fault = self.next(if is_head { "head" } else { "get" }, location, possible).await;
        if matches!(fault, Some(Fault::Before | Fault::After)) {
            return Err(failure("503"));
        }
        let found = self.inner.get_opts(location, options).await?;
        let Some(fault) = fault else { return Ok(found) };
        let (meta, range, attributes, extensions) =
            (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
        let bytes = found.bytes().await?;
        let parts = self.spoil(location, bytes, &range, fault).await;
        let payload = GetResultPayload::Stream(stream::iter(parts).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .then(move |location| {
                let this = this.clone();
                async move {
                    let location = location?;
                    let fault = this.next("delete", &location, &[Fault::Before, Fault::After]).await;
                    if fault == Some(Fault::Before) {
                        return Err(failure("503"));
                    }
                    let one = stream::once(std::future::ready(Ok(location.clone()))).boxed();
                    let _ = this.inner.delete_stream(one).collect::<Vec<_>>().await;
                    if fault.is_some() { Err(failure("the answer was lost")) } else { Ok(location) }
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        let listing = async move {
            let fault = this.next("list", &Path::default(), &[Fault::Before]).await;
            let listed = this.inner.list(Some(&prefix)).collect::<Vec<_>>().await;
            let parts = if fault.is_some() { vec![Err(failure("503"))] } else { listed };
            stream::iter(parts)
        };
        stream::once(listing).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.around("list", &Path::default(), self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.around("copy", from, self.inner.copy_opts(from, to, options)).await
    }
}
