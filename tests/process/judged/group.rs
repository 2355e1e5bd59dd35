//! Replicas, and the contents of their store.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use futures::TryStreamExt;
use kvasir_store::{OpenStore, StoreConfig, layout::Key, observe::NoObserver, seal::FileKeys};
use kvasir_tests::{
    model::Replica,
    process::{Log, Process, Start},
    proxy::FaultProxy,
    service::Api,
};
use kvasir_types::{ObjectDigest, SeqHash};
use object_store::ObjectMeta;

use super::{ASKED_AGAIN, STEP_MAX, settings::Settings};
use crate::SERVER;

pub(super) const REPLICAS: usize = 3;
/// How often the judge asks the store before it gives up; each time it waits for up to 50 s, with retries.
const ATTEMPTS_MAX: usize = 10;
const FLAGS: [&str; 4] = [
    // URLs must not outlive what they name.
    "--direct.enabled=false",
    "--journal.interval=200ms",
    "--lookup.negative_ttl=1s",
    "--s3.listen=127.0.0.1:0",
];

/// The entry of a wrapping key for every tenant; the last one of a file wraps new data.
pub(super) fn key(n: usize) -> String {
    format!("[[key]]\ntenant = \"*\"\nid = \"k{n}\"\nkey = \"{:064x}\"\n", n + 1)
}

/// The replica of one place.
pub(super) struct Member {
    life: Replica,
    pub(super) process: Process,
    pub(super) disk: PathBuf,
    s3: SocketAddr,
}

pub(super) struct Group<'a> {
    store: &'a StoreConfig,
    /// The store as the replicas reach it, and the proxy that injects faults; `None` if there is no network
    /// in between.
    way: Option<(StoreConfig, FaultProxy)>,
    settings: Cell<Settings>,
    /// Keys of encryption at rest, if tenants are sealed.
    pub(super) keys: Option<PathBuf>,
    /// How many wrapping keys the file has had.
    pub(super) keys_made: Cell<usize>,
    directory: &'a Path,
    members: RefCell<[Option<Member>; REPLICAS]>,
    /// Unused disks, and the time since when they are unused.
    pub(super) away: RefCell<Vec<(PathBuf, Instant)>>,
    lives: Cell<Replica>,
    disks: Cell<u64>,
    pub(super) mishaps: RefCell<BTreeMap<&'static str, u64>>,
    /// How many replicas were killed so far.
    pub(super) kills: Cell<u64>,
    /// When the store was out of reach, or may have been.
    pub(super) troubles: RefCell<Vec<(Instant, Instant)>>,
}

impl<'a> Group<'a> {
    pub(super) async fn start(store: &'a StoreConfig, directory: &'a Path, is_sealed: bool) -> Self {
        let keys = is_sealed.then(|| directory.join("keys.toml"));
        if let Some(file) = &keys {
            std::fs::write(file, key(0)).expect("writes");
        }
        let way = match &store.endpoint {
            Some(endpoint) => {
                let upstream = endpoint.trim_start_matches("http://").parse().expect("an address");
                let proxy = FaultProxy::start(upstream, 1, 0).await;
                let endpoint = Some(format!("http://{}", proxy.address));
                Some((StoreConfig { endpoint, ..store.clone() }, proxy))
            }
            None => None,
        };
        let this = Self {
            store,
            way,
            settings: Cell::new(Settings::FIRST),
            keys,
            keys_made: Cell::new(1),
            directory,
            members: RefCell::default(),
            away: RefCell::default(),
            lives: Cell::default(),
            disks: Cell::default(),
            mishaps: RefCell::default(),
            kills: Cell::default(),
            troubles: RefCell::default(),
        };
        for place in 0..REPLICAS {
            this.begin(place, this.empty_disk()).await;
        }
        this
    }

    /// Starts every replica again under other settings.
    pub(super) async fn restart(&self, settings: Settings) {
        self.settings.set(settings);
        for place in 0..REPLICAS {
            self.drain(place).await;
        }
    }

    /// Ends a replica in order, and starts it on its disk.
    pub(super) async fn drain(&self, place: usize) {
        let Member { mut process, disk, .. } = self.end(place);
        process.terminate();
        let status = process.wait().await;
        assert!(status.success(), "{status}: {}", process.log());
        self.begin(place, disk).await;
    }

    /// The proxy, if there is one and this history has faults.
    pub(super) fn proxy(&self) -> Option<&FaultProxy> {
        self.way.as_ref().map(|(_, proxy)| proxy).filter(|_| self.settings.get().has_trouble)
    }

    /// Whether every replica reached the store all the time since a moment.
    pub(super) fn reached_the_store(&self, since: Instant) -> bool {
        self.troubles.borrow().iter().all(|(_, until)| *until < since)
    }

    pub(super) fn empty_disk(&self) -> PathBuf {
        self.disks.set(self.disks.get() + 1);
        self.directory.join(self.disks.get().to_string())
    }

    pub(super) async fn begin(&self, place: usize, disk: PathBuf) {
        let keys = self.keys.as_ref().map(|file| format!("--encryption.keys_file={}", file.display()));
        let settings = self.settings.get().flags();
        let flags: Vec<_> =
            FLAGS.into_iter().chain(settings.iter().map(String::as_str)).chain(keys.as_deref()).collect();
        let store = self.way.as_ref().map_or(self.store, |(way, _)| way);
        let start = Start { patience: STEP_MAX, ..Start::new(SERVER, store, &disk) };
        let process = start.flags(&flags).start().await;
        process.ready().await;
        let s3 = process.s3_address().await;
        self.lives.set(self.lives.get() + 1);
        self.members.borrow_mut()[place] = Some(Member { life: self.lives.get(), process, disk, s3 });
    }

    pub(super) fn end(&self, place: usize) -> Member {
        self.members.borrow_mut()[place].take().expect("one mishap at a time")
    }

    /// Those that run.
    pub(super) fn live(&self) -> Vec<(Replica, Api)> {
        let members = self.members.borrow();
        members.iter().flatten().map(|member| (member.life, member.process.api().clone())).collect()
    }

    /// The addresses of running replicas for objects by key: the REST API, and S3.
    pub(super) fn doors(&self) -> Vec<(Replica, Api, SocketAddr)> {
        let members = self.members.borrow();
        let door = |member: &Member| (member.life, member.process.api().clone(), member.s3);
        members.iter().flatten().map(door).collect()
    }

    /// The end of the log of a replica, for the report of a failure.
    pub(super) fn log(&self, life: Replica) -> String {
        let members = self.members.borrow();
        let of = members.iter().flatten().find(|member| member.life == life);
        of.map_or_else(|| "it has ended".to_owned(), |member| member.process.log())
    }

    /// The log of a replica, which stays when it ends; an empty one if it has ended.
    pub(super) fn log_lines(&self, life: Replica) -> Arc<Log> {
        let members = self.members.borrow();
        let of = members.iter().flatten().find(|member| member.life == life);
        of.map(|member| member.process.log_lines()).unwrap_or_default()
    }

    /// Objects and tombstones of chunks in the bucket, for the report of a failure.
    pub(super) async fn stored(&self, chunks: &BTreeSet<SeqHash>) -> String {
        let store = self.open();
        let listed = self.listed(&store).await;
        let (mut found, mut logs) = (String::new(), BTreeMap::new());
        for meta in listed {
            let of = match store.layout().parse(&meta.location) {
                Some(Key::Chunk(key) | Key::Tombstone(key)) => key.seq_hash,
                Some(Key::Journal { log, replica, .. }) => {
                    let (batches, replicas) = logs.entry(log).or_insert((0, BTreeSet::new()));
                    *batches += 1;
                    replicas.insert(replica);
                    continue;
                }
                _ => continue,
            };
            if chunks.contains(&of) {
                writeln!(found, "{} of {} bytes, {}", meta.location, meta.size, meta.last_modified)
                    .expect("a text");
            }
        }
        for (log, (batches, replicas)) in logs {
            let replicas = replicas.len();
            writeln!(found, "{batches} batches of {replicas} replicas in {log:?}").expect("a text");
        }
        found
    }

    fn open(&self) -> OpenStore {
        let open = OpenStore::open(self.store, Arc::new(NoObserver)).expect("opens");
        let keys = self.keys.as_ref().map(|file| std::fs::read_to_string(file).expect("reads"));
        match keys {
            Some(keys) => open.sealed(Arc::new(FileKeys::parse(&keys).expect("keys"))),
            None => open,
        }
    }

    /// Whether each tenant key is in the bucket under the `n`th wrapping key, so that the others may go.
    pub(super) async fn is_wrapped_by(&self, n: usize) -> bool {
        let (store, wrapping) = (self.open(), format!("k{n}"));
        let mut tenant_keys = BTreeMap::new();
        for meta in self.listed(&store).await {
            if let Some(Key::TenantKey { tenant, id, wrapped_by }) = store.layout().parse(&meta.location) {
                *tenant_keys.entry((tenant, id)).or_insert(false) |= wrapped_by.as_str() == wrapping;
            }
        }
        !tenant_keys.is_empty() && tenant_keys.into_values().all(|is_wrapped| is_wrapped)
    }

    /// The chunk objects in the store, whether or not they have a tombstone.
    pub(super) async fn chunk_objects(&self) -> BTreeSet<(SeqHash, ObjectDigest)> {
        let store = self.open();
        let listed = self.listed(&store).await;
        let objects = listed.iter().filter_map(|meta| match store.layout().parse(&meta.location) {
            Some(Key::Chunk(key)) => Some((key.seq_hash, key.object_digest)),
            _ => None,
        });
        objects.collect()
    }

    /// All objects. A real server on a busy machine may need longer than one listing waits.
    async fn listed(&self, store: &OpenStore) -> Vec<ObjectMeta> {
        let mut last = None;
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                tokio::time::sleep(ASKED_AGAIN).await;
            }
            match store.objects().list(None).try_collect().await {
                Ok(listed) => return listed,
                Err(error) => last = Some(error),
            }
        }
        panic!("the store cannot be listed: {last:?}");
    }

    /// The objects of these chunks in the store whose bytes are those of their name.
    pub(super) async fn sound_objects(&self, chunks: &BTreeSet<SeqHash>) -> Vec<(SeqHash, ObjectDigest)> {
        let store = self.open();
        let listed = self.listed(&store).await;
        let mut sound = Vec::new();
        for meta in listed {
            let Some(Key::Chunk(key)) = store.layout().parse(&meta.location) else { continue };
            if chunks.contains(&key.seq_hash) && digest_of(&store, &meta).await == Some(key.object_digest) {
                sound.push((key.seq_hash, key.object_digest));
            }
        }
        sound
    }
}

/// The digest of an object's bytes; `None` if a collector was faster, or it cannot be read. A store that is slow has lost nothing.
async fn digest_of(store: &OpenStore, meta: &ObjectMeta) -> Option<ObjectDigest> {
    let mut last = None;
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 {
            tokio::time::sleep(ASKED_AGAIN).await;
        }
        let read =
            async { store.objects().get_opts(&meta.location, Default::default()).await?.bytes().await };
        match read.await {
            Ok(bytes) => return Some(ObjectDigest::of(&bytes)),
            Err(object_store::Error::NotFound { .. }) => return None,
            Err(error) => last = Some(error),
        }
    }
    println!("{} cannot be read: {last:?}", meta.location);
    None
}
