//! Replicas, what befalls them, and what is in their store.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::TryStreamExt;
use kvasir_store::{OpenStore, StoreConfig, layout::Key, observe::NoObserver, seal::FileKeys};
use kvasir_tests::{
    chunks::Chunk,
    faulty::Dice,
    model::Replica,
    process::{Process, Start},
    service::Api,
};
use kvasir_types::{ObjectDigest, SeqHash};
use tokio::time::sleep;

use crate::SERVER;

const REPLICAS: usize = 3;
/// As in the flags.
pub(super) const TOMBSTONE_RETENTION: Duration = Duration::from_secs(60);
pub(super) const TTL: Duration = Duration::from_secs(20);
pub(super) const GRACE: Duration = Duration::from_secs(2);
const FLAGS: [&str; 10] = [
    "--gc.interval=500ms",
    "--gc.grace=2s",
    "--gc.tombstone_retention=1m",
    "--gc.ttl=20s",
    "--gc.actions_per_second=0",
    // URLs must not outlive what they name.
    "--direct.enabled=false",
    "--journal.interval=200ms",
    "--journal.retention=1s",
    "--lookup.negative_ttl=1s",
    "--s3.listen=127.0.0.1:0",
];
/// Removals leave the log before.
const LONG_AWAY: Duration = Duration::from_secs(63);

/// The entry of a wrapping key for every tenant; the last one of a file wraps what is new.
fn key(n: usize) -> String {
    format!("[[key]]\ntenant = \"*\"\nid = \"k{n}\"\nkey = \"{:064x}\"\n", n + 1)
}

/// The replica of one place.
struct Member {
    life: Replica,
    process: Process,
    disk: PathBuf,
    s3: SocketAddr,
}

pub(super) struct Group<'a> {
    store: &'a StoreConfig,
    /// Keys of encryption at rest, where tenants are sealed.
    keys: Option<PathBuf>,
    directory: &'a Path,
    members: RefCell<[Option<Member>; REPLICAS]>,
    /// Disks that nobody uses, and since when.
    away: RefCell<Vec<(PathBuf, Instant)>>,
    lives: Cell<Replica>,
    disks: Cell<u64>,
    mishaps: RefCell<BTreeMap<&'static str, u64>>,
}

impl<'a> Group<'a> {
    pub(super) async fn start(store: &'a StoreConfig, directory: &'a Path, is_sealed: bool) -> Self {
        let keys = is_sealed.then(|| directory.join("keys.toml"));
        if let Some(file) = &keys {
            std::fs::write(file, key(0)).expect("writes");
        }
        let this = Self {
            store,
            keys,
            directory,
            members: RefCell::default(),
            away: RefCell::default(),
            lives: Cell::default(),
            disks: Cell::default(),
            mishaps: RefCell::default(),
        };
        for place in 0..REPLICAS {
            this.begin(place, this.empty_disk()).await;
        }
        this
    }

    fn empty_disk(&self) -> PathBuf {
        self.disks.set(self.disks.get() + 1);
        self.directory.join(self.disks.get().to_string())
    }

    async fn begin(&self, place: usize, disk: PathBuf) {
        let keys = self.keys.as_ref().map(|file| format!("--encryption.keys_file={}", file.display()));
        let flags: Vec<_> = FLAGS.into_iter().chain(keys.as_deref()).collect();
        let process = Start::new(SERVER, self.store, &disk).flags(&flags).start().await;
        process.ready().await;
        let s3 = process.s3_address().await;
        self.lives.set(self.lives.get() + 1);
        self.members.borrow_mut()[place] = Some(Member { life: self.lives.get(), process, disk, s3 });
    }

    fn end(&self, place: usize) -> Member {
        self.members.borrow_mut()[place].take().expect("one mishap at a time")
    }

    /// Those that run.
    pub(super) fn live(&self) -> Vec<(Replica, Api)> {
        let members = self.members.borrow();
        members.iter().flatten().map(|member| (member.life, member.process.api().clone())).collect()
    }

    /// Where those that run are asked for objects by key: by the REST API, and over S3.
    pub(super) fn doors(&self) -> Vec<(Api, SocketAddr)> {
        let members = self.members.borrow();
        members.iter().flatten().map(|member| (member.process.api().clone(), member.s3)).collect()
    }

    /// The end of the log of a replica, for the report of a failure.
    pub(super) fn log(&self, life: Replica) -> String {
        let members = self.members.borrow();
        let of = members.iter().flatten().find(|member| member.life == life);
        of.map_or_else(|| "it has ended".to_owned(), |member| member.process.log())
    }

    /// Objects and tombstones of chunks, as they lie in the bucket, for the report of a failure.
    pub(super) async fn stored(&self, chunks: &[Chunk]) -> String {
        let store = self.open();
        let listed: Vec<_> = store.objects().list(None).try_collect().await.expect("lists");
        let mut found = String::new();
        for meta in listed {
            let of = match store.layout().parse(&meta.location) {
                Some(Key::Chunk(key) | Key::Tombstone(key)) => key.seq_hash,
                _ => continue,
            };
            if chunks.iter().any(|chunk| chunk.seq_hash == of) {
                writeln!(found, "{} of {} bytes, {}", meta.location, meta.size, meta.last_modified)
                    .expect("a text");
            }
        }
        found
    }

    /// How often each mishap was.
    pub(super) fn mishaps(&self) -> BTreeMap<&'static str, u64> {
        self.mishaps.borrow().clone()
    }

    /// Mishaps, one after the other, for `time`.
    pub(super) async fn suffer(&self, dice: &mut Dice, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            let pause = Duration::from_millis(300 + dice.below(2_000) as u64);
            sleep(pause.min(time.saturating_sub(begun.elapsed()))).await;
            let what = self.mishap(dice).await;
            *self.mishaps.borrow_mut().entry(what).or_default() += 1;
        }
    }

    async fn mishap(&self, dice: &mut Dice) -> &'static str {
        if let Some(file) = self.keys.as_ref().filter(|_| dice.chance(200)) {
            // Replicas take it in within seconds, and one after the other: some still wrap under the key before.
            let text = std::fs::read_to_string(file).expect("reads");
            let next = key(text.matches("[[key]]").count());
            std::fs::write(file, text + &next).expect("writes");
            return "wrapping key rotated";
        }
        let place = dice.below(REPLICAS);
        let Member { mut process, disk, .. } = self.end(place);
        match dice.below(5) {
            0 => {
                process.kill();
                self.begin(place, disk).await;
                "killed"
            }
            1 => {
                process.kill();
                self.begin(place, self.empty_disk()).await;
                "killed and wiped"
            }
            2 => {
                process.terminate();
                let status = process.wait().await;
                assert!(status.success(), "{status}: {}", process.log());
                self.begin(place, disk).await;
                "drained"
            }
            _ => {
                process.kill();
                self.away.borrow_mut().push((disk, Instant::now()));
                let long_away = |(_, since): &mut (PathBuf, Instant)| since.elapsed() > LONG_AWAY;
                let back = self.away.borrow_mut().extract_if(.., long_away).next();
                let what = if back.is_some() { "back after the logs' retention" } else { "gone for long" };
                self.begin(place, back.map_or_else(|| self.empty_disk(), |(disk, _)| disk)).await;
                what
            }
        }
    }

    fn open(&self) -> OpenStore {
        let open = OpenStore::open(self.store, Arc::new(NoObserver)).expect("opens");
        let keys = self.keys.as_ref().map(|file| std::fs::read_to_string(file).expect("reads"));
        match keys {
            Some(keys) => open.sealed(Arc::new(FileKeys::parse(&keys).expect("keys"))),
            None => open,
        }
    }

    /// The objects in the store whose bytes are those of their name.
    pub(super) async fn sound_objects(&self) -> Vec<(SeqHash, ObjectDigest)> {
        let store = self.open();
        let listed: Vec<_> = store.objects().list(None).try_collect().await.expect("lists");
        let mut sound = Vec::new();
        for meta in listed {
            let Some(Key::Chunk(key)) = store.layout().parse(&meta.location) else { continue };
            // A collector may be faster.
            let Ok(found) = store.objects().get_opts(&meta.location, Default::default()).await else {
                continue;
            };
            let Ok(bytes) = found.bytes().await else { continue };
            if ObjectDigest::of(&bytes) == key.object_digest {
                sound.push((key.seq_hash, key.object_digest));
            }
        }
        sound
    }
}
