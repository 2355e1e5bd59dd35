//! An object store with all kinds of faults, by a seed, on the simulation's clock.

mod dice;
mod fault;
mod life;
mod spoil;
mod tamper;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart, memory::InMemory, path::Path,
};
use tokio::time::Instant;

pub use self::{
    dice::Dice,
    fault::{Fault, ZOMBIE_MAX},
    life::{FINDING_OUT, Life},
    tamper::{Tampered, Tampering},
};
use self::{fault::Weather, tamper::Adversary};

/// Requests of a thousand before which the adversary acts.
const ADVERSE: usize = 3;
/// A request that is never answered takes so long.
const SILENCE: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
struct Plan {
    dice: Dice,
    per_mille: usize,
    /// Bodies equal the stored ones, or break off.
    is_honest: bool,
    weather: Weather,
    weather_until: Instant,
    /// There are no faults before this.
    calm_until: Instant,
    injected: [u64; Fault::ALL.len()],
    corruptions: u64,
    misdirections: u64,
    trace: blake3::Hasher,
    requests: u64,
    /// When each stored object was written, by the store's clock.
    written: HashMap<Path, Instant>,
    tampered: Vec<Tampered>,
}

#[derive(Debug)]
struct Shared {
    adversary: tokio::sync::Mutex<Option<Adversary>>,
    inner: InMemory,
    plan: Mutex<Plan>,
    begun: Instant,
    ignores_conditions: bool,
}

/// The store, as one replica sees it. Clones share everything.
#[derive(Debug, Clone)]
pub struct FaultyStore {
    shared: Arc<Shared>,
    life: Life,
}

impl FaultyStore {
    /// Goes wrong in `per_mille` of a thousand requests. Must be made in the simulation's runtime.
    pub fn new(seed: u64, per_mille: usize, ignores_conditions: bool) -> Self {
        let now = Instant::now();
        let plan = Plan {
            dice: Dice::new(seed),
            per_mille,
            is_honest: false,
            weather: Weather::Fair,
            weather_until: now + Duration::from_secs(30),
            calm_until: now,
            injected: [0; Fault::ALL.len()],
            corruptions: 0,
            misdirections: 0,
            trace: blake3::Hasher::new(),
            requests: 0,
            written: HashMap::new(),
            tampered: Vec::new(),
        };
        let inner = InMemory::new();
        let shared = Shared {
            adversary: Default::default(),
            inner,
            plan: Mutex::new(plan),
            begun: now,
            ignores_conditions,
        };
        Self { shared: Arc::new(shared), life: Life::new() }
    }

    /// The same store for another replica.
    pub fn for_replica(&self) -> (Self, Life) {
        let life = Life::new();
        (Self { shared: Arc::clone(&self.shared), life: life.clone() }, life)
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.shared.plan.lock().expect("not poisoned")
    }

    /// Ends all faults.
    pub fn heal(&self) {
        let mut plan = self.plan();
        plan.per_mille = 0;
        plan.weather = Weather::Fair;
        plan.weather_until = Instant::now() + SILENCE * 1_000;
    }

    /// From now on every body equals the stored one.
    pub fn be_honest(&self) {
        self.plan().is_honest = true;
    }

    /// From now on an adversary writes into it, until it heals.
    pub async fn let_in_an_adversary(&self, seed: u64) {
        *self.shared.adversary.lock().await = Some(Adversary::new(seed));
    }

    /// The adversary's actions since the last call.
    pub fn tampered(&self) -> Vec<Tampered> {
        std::mem::take(&mut self.plan().tampered)
    }

    async fn tamper(&self) {
        if let Some(adversary) = &mut *self.shared.adversary.lock().await {
            let acts = {
                let mut plan = self.plan();
                plan.per_mille > 0 && Instant::now() >= plan.calm_until && plan.dice.chance(ADVERSE)
            };
            if acts {
                let tampered = adversary.act(&self.shared.inner).await;
                let mut plan = self.plan();
                for Tampered { what, key, at } in &tampered {
                    plan.written.insert(adversary.path(key), *at);
                    plan.trace.update(format!("{what:?};").as_bytes());
                }
                plan.tampered.extend(tampered);
            }
        }
    }

    /// Records an object before its deletion: the adversary may restore it.
    async fn remember(&self, path: &Path) {
        if let Some(adversary) = &mut *self.shared.adversary.lock().await {
            adversary.remember(&self.shared.inner, path).await;
        }
    }

    /// Pauses all faults for a while.
    pub fn calm(&self, time: Duration) {
        self.plan().calm_until = Instant::now() + time;
    }

    /// How often each fault was injected, in the order of [`Fault::ALL`].
    pub fn injected(&self) -> [u64; Fault::ALL.len()] {
        self.plan().injected
    }

    /// Bodies that were handed out other than they are, and of these those that are valid in another place.
    pub fn corruptions(&self) -> (u64, u64) {
        let plan = self.plan();
        (plan.corruptions, plan.misdirections)
    }

    /// Requests so far, and a hash of them and of all that went wrong, in order: equal for equal seeds.
    pub fn trace(&self) -> (u64, String) {
        let plan = self.plan();
        (plan.requests, plan.trace.finalize().to_hex().to_string())
    }

    /// The truth.
    pub fn inner(&self) -> &InMemory {
        &self.shared.inner
    }

    /// Whether conditional writes are ignored.
    pub fn ignores_conditions(&self) -> bool {
        self.shared.ignores_conditions
    }

    /// Decides about a request, after a while in which others proceed.
    async fn next(&self, what: &str, path: &Path, possible: &[Fault], writes: bool) -> Option<Fault> {
        self.life.alive().await;
        let (fault, delay) = {
            let mut plan = self.plan();
            let fault = match self.life.is_cut_off_from(path) {
                true => Some(Fault::Before),
                false => plan.decide(possible, writes),
            };
            if fault.is_some() {
                self.life.note_fault();
            }
            let delay = plan.dice.below(40);
            plan.requests += 1;
            // Probes, journals and salts are named at random: their names are no part of the trace.
            let named = path
                .parts()
                .next_back()
                .filter(|_| path.as_ref().contains("/c/") || path.as_ref().contains("/d/"))
                .filter(|_| what != "list");
            let name = named.map(|part| part.as_ref().to_owned()).unwrap_or_default();
            plan.trace.update(format!("{what} {name} {fault:?} {delay};").as_bytes());
            if let Some(fault) = fault {
                let at = Fault::ALL.iter().position(|f| *f == fault).expect("one of all");
                plan.injected[at] += 1;
            }
            (fault, delay)
        };
        tokio::time::sleep(Duration::from_millis(delay as u64)).await;
        self.life.alive().await;
        self.tamper().await;
        fault
    }

    /// A request that changes something, and its faults. `effect` does it; all of it is owned, because it may happen
    /// after the request is over.
    async fn change<T: Send + 'static>(
        &self,
        what: &str,
        path: &Path,
        effect: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let fault = self.next(what, path, &Fault::CHANGING, true).await;
        let result = match fault {
            None => effect.await,
            Some(Fault::SlowDown) => Err(failure("503 SlowDown")),
            Some(Fault::Silence) => {
                tokio::time::sleep(SILENCE).await;
                Err(failure("silence"))
            }
            Some(Fault::After) => effect.await.and(Err(failure("the answer was lost"))),
            Some(Fault::Late) => {
                let result = effect.await;
                let wait = self.plan().dice.below(5_000);
                tokio::time::sleep(Duration::from_millis(wait as u64)).await;
                result
            }
            Some(Fault::Zombie) => {
                let wait = self.plan().dice.below(ZOMBIE_MAX.as_millis() as usize);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(wait as u64)).await;
                    let _ = effect.await;
                });
                Err(failure("the connection was lost"))
            }
            Some(_) => Err(failure("500")),
        };
        self.life.alive().await;
        result
    }

    /// A request that only reads, and its faults.
    async fn ask(&self, what: &str, path: &Path, possible: &[Fault]) -> Result<Option<Fault>> {
        let fault = self.next(what, path, possible, false).await;
        match fault {
            Some(Fault::Before | Fault::After) => Err(failure("500")),
            Some(Fault::SlowDown) => Err(failure("503 SlowDown")),
            Some(Fault::Silence) => {
                tokio::time::sleep(SILENCE).await;
                Err(failure("silence"))
            }
            Some(Fault::Late) => {
                let wait = self.plan().dice.below(5_000);
                tokio::time::sleep(Duration::from_millis(wait as u64)).await;
                self.life.alive().await;
                Ok(None)
            }
            fault => Ok(fault),
        }
    }

    /// Sets the store's time in a listing entry, off by `error_ms`.
    fn dated(&self, mut meta: ObjectMeta, error_ms: i64) -> ObjectMeta {
        let written = self.plan().written.get(&meta.location).copied().unwrap_or(self.shared.begun);
        let since = written.duration_since(self.shared.begun).as_millis() as i64;
        // Any day will do.
        let millis = 1_800_000_000_000 + since + error_ms;
        if let Some(time) = std::time::UNIX_EPOCH.checked_add(Duration::from_millis(millis as u64)) {
            meta.last_modified = time.into();
        }
        meta
    }

    fn wrote(&self, path: &Path) {
        self.plan().written.insert(path.clone(), Instant::now());
    }
}

impl Plan {
    fn decide(&mut self, possible: &[Fault], writes: bool) -> Option<Fault> {
        let now = Instant::now();
        if now < self.calm_until {
            return None;
        }
        if self.per_mille > 0 && now >= self.weather_until {
            // Mostly fair, and never bad for long.
            let (weather, seconds) = match self.dice.below(10) {
                0 => (Weather::Away, 1 + self.dice.below(8)),
                1 => (Weather::Full, 1 + self.dice.below(8)),
                2 => (Weather::Busy, 1 + self.dice.below(8)),
                _ => (Weather::Fair, 20 + self.dice.below(100)),
            };
            self.weather = weather;
            self.weather_until = now + Duration::from_secs(seconds as u64);
        }
        match self.weather {
            Weather::Away => return Some(Fault::Before),
            Weather::Full if writes => return Some(Fault::Before),
            Weather::Busy if self.dice.chance(500) => return Some(Fault::SlowDown),
            _ => {}
        }
        let hit = self.dice.chance(self.per_mille);
        let fault = hit.then(|| possible[self.dice.below(possible.len())]);
        fault.map(|fault| if self.is_honest && fault.corrupts() { Fault::Reset } else { fault })
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
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        if self.shared.ignores_conditions {
            opts.mode = PutMode::Overwrite;
        }
        let (this, path) = (self.clone(), location.clone());
        let effect = async move {
            let result = this.shared.inner.put_opts(&path, payload, opts).await;
            if result.is_ok() {
                this.wrote(&path);
            }
            result
        };
        self.change("put", location, effect).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (this, path) = (self.clone(), location.clone());
        let effect = async move { this.shared.inner.put_multipart_opts(&path, opts).await };
        let inner = self.change("multipart", location, effect).await?;
        let inner = Arc::new(tokio::sync::Mutex::new(inner));
        Ok(Box::new(FaultyUpload { store: self.clone(), path: location.clone(), inner }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (what, possible) =
            if options.head { ("head", &Fault::ASKING[..]) } else { ("get", &Fault::READING[..]) };
        let fault = self.ask(what, location, possible).await?;
        let mut found = self.shared.inner.get_opts(location, options).await?;
        // A replica learns the store's time by the date of its probe.
        let is_probe = location.as_ref().contains("/probe/");
        found.meta = self.dated(found.meta, if is_probe { self.life.clock_error_ms() } else { 0 });
        let Some(fault) = fault else { return Ok(found) };
        let (meta, range, attributes, extensions) =
            (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
        let truth = found.bytes().await?;
        let mut dice = Dice::new(self.plan().dice.number());
        let (body, differs) =
            spoil::spoiled(&self.shared.inner, &mut dice, location, &range, &truth, fault).await;
        if differs && fault.corrupts() {
            let mut plan = self.plan();
            plan.corruptions += 1;
            self.life.note_misled();
            plan.misdirections += u64::from(fault.misdirects());
        }
        Ok(GetResult { payload: GetResultPayload::Stream(body), meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .then(move |location| {
                let this = this.clone();
                async move {
                    let location = location?;
                    let (store, path) = (this.clone(), location.clone());
                    let effect = async move {
                        store.remember(&path).await;
                        store.shared.inner.delete(&path).await
                    };
                    this.change("delete", &location, effect).await.map(|()| location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        let listing = async move {
            let fault = this.ask("list", &prefix, &Fault::ASKING).await;
            let mut listed: Vec<_> = this.shared.inner.list(Some(&prefix)).collect().await;
            listed.iter_mut().flatten().for_each(|meta| *meta = this.dated(meta.clone(), 0));
            // A listing may fail between its pages, too.
            if let Err(error) = fault {
                let page = this.plan().dice.below(listed.len());
                listed.truncate(page);
                listed.push(Err(error));
            }
            stream::iter(listed)
        };
        stream::once(listing).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.ask("list", &prefix.cloned().unwrap_or_default(), &Fault::ASKING).await?;
        self.shared.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (this, from, to) = (self.clone(), from.clone(), to.clone());
        let path = to.clone();
        let effect = async move { this.shared.inner.copy_opts(&from, &to, options).await };
        self.change("copy", &path, effect).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    store: FaultyStore,
    path: Path,
    inner: Arc<tokio::sync::Mutex<Box<dyn MultipartUpload>>>,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (store, path) = (self.store.clone(), self.path.clone());
        // The part has its place from now on, whenever it arrives.
        let part = self.inner.try_lock().map(|mut inner| inner.put_part(data));
        Box::pin(async move {
            let part = part.map_err(|_| failure("the upload is being completed"))?;
            store.change("part", &path, part).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (inner, this, path) = (Arc::clone(&self.inner), self.store.clone(), self.path.clone());
        let effect = async move {
            let result = inner.lock().await.complete().await;
            if result.is_ok() {
                this.wrote(&path);
            }
            result
        };
        self.store.change("complete", &self.path, effect).await
    }

    async fn abort(&mut self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        self.store.change("abort", &self.path, async move { inner.lock().await.abort().await }).await
    }
}
