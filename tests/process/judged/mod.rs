//! Three replicas over one store, and the model of the promises that judges their answers. Replicas are
//! killed, drained, and restarted on their old disk, on an empty one, or on one from before the logs'
//! retention.
//!
//! Longer by `KVASIR_TEST_PROCESS_SECONDS`, another one by `KVASIR_TEST_PROCESS_SEED`.

mod client;
mod group;
mod keys;
mod mishaps;
mod quota;
mod rotation;
mod settings;
mod uploads;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures::future::join_all;
use kvasir_api::LookupRequest;
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks::{self, Chunk},
    faulty::Dice,
    model::{Interval, Keys, Model, Outcome, slowest},
    s3::S3Server,
    servers::RealServer,
    service::{ASKED_AGAIN, SERVED_AGAIN, lookup_request},
};
use kvasir_types::{ModelId, ObjectDigest, RootHash, SeqHash};
use tempfile::TempDir;

use self::{
    client::{Client, Loaded},
    group::Group,
    keys::KeyClient,
    settings::{DRY_RUN, NEGATIVE_TTL, REMOVAL_BOUND_IN_TROUBLE, Settings},
    uploads::{UploadClient, Uploads},
};
use crate::{file_store, wanted};

const SECONDS: u64 = 20;
/// Each history uses a new namespace, so that the judged state stays small.
const HISTORY: Duration = Duration::from_secs(150);
/// The part of a run that may remain after its last history.
const LEFT_OVER: Duration = Duration::from_secs(5);
/// A slow machine gets this many times the intended time to reach the goal.
const PATIENCE: u32 = 4;
/// How long a replica may offer a chunk after all faults and have no object of it.
const OFFERED_MAX: Duration = Duration::from_secs(60);
/// Maximum time of any step of a replica: a drain alone may take half a minute, and several times that on a busy machine.
const STEP_MAX: Duration = Duration::from_secs(180);
/// What a replica logs that could not read the journal in time.
const STORE_IS_SLOW: &str = "the store is slow: lookups proceed";
/// A request for some KB that takes longer shows that the machine or the store is busy. A removal reaches another replica by
/// several such requests.
const SLOW: Duration = Duration::from_secs(1);
const CLIENTS: u64 = 4;
const KEY_CLIENTS: u64 = 3;
const UPLOAD_CLIENTS: u64 = 3;
const CONTEXTS: u64 = 8;
/// The requests and answers of one history.
struct History {
    begun: Instant,
    model: RefCell<Model>,
    /// Chunk objects that were acknowledged.
    stored: RefCell<BTreeSet<(SeqHash, ObjectDigest)>>,
    /// The collector must leave all of them.
    is_dry_run: bool,
    /// Of objects by key.
    keys: RefCell<Keys>,
    /// PUTs by key, by their result and whether they came over S3.
    puts_by_key: RefCell<BTreeMap<(&'static str, bool), u64>>,
    uploads: Uploads,
    /// Answers that only a busy machine excuses.
    excused: RefCell<BTreeMap<&'static str, u64>>,
    namespace: String,
    model_id: ModelId,
    root: RootHash,
    contexts: Vec<(Vec<u32>, Vec<Chunk>)>,
    pins: Cell<u64>,
    is_over: Cell<bool>,
}

impl History {
    fn new(n: u64, settings: &Settings, namespace: String, (model_id, root): (ModelId, RootHash)) -> Self {
        let bounds = settings.bounds();
        let (model, keys) = (Model::new(bounds), Keys::new(bounds, settings.meeting_grace()));
        let mut dice = Dice::new(n);
        let contexts = (0..CONTEXTS).map(|i| {
            // Ends of contexts are no ends of blocks, and pairs share a beginning.
            let mut tokens = chunks::tokens(n * 100 + i / 2, (300 + dice.below(1_200)) | 1);
            let split = dice.below(tokens.len());
            tokens[split] ^= 1;
            let chunks = chunks::context(root, &tokens, [256, 512][dice.below(2)], 20 + dice.below(2_000));
            (tokens, chunks)
        });
        let contexts = contexts.collect();
        let begun = Instant::now();
        Self {
            begun,
            model: RefCell::new(model),
            stored: RefCell::default(),
            is_dry_run: settings.dry_run,
            keys: RefCell::new(keys),
            puts_by_key: RefCell::default(),
            uploads: Uploads::default(),
            excused: RefCell::default(),
            namespace,
            model_id,
            root,
            contexts,
            pins: Cell::default(),
            is_over: Cell::default(),
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn since(&self, begun: Duration) -> Interval {
        Interval { begun, ended: self.now() }
    }

    fn lookup_of(&self, tokens: &[u32], fresh: bool) -> LookupRequest {
        lookup_request(self.model_id, &self.namespace, tokens, fresh)
    }

    fn excuse(&self, why: &'static str) {
        *self.excused.borrow_mut().entry(why).or_default() += 1;
    }

    /// When everything ran that stores or removes.
    fn requests(&self) -> Vec<Interval> {
        let (model, keys) = (self.model.borrow(), self.keys.borrow());
        model.requests().chain(keys.requests()).collect()
    }

    /// What ended with an unknown outcome may come as late as others beside it took.
    fn settle(&self) {
        let (requests, now) = (self.requests(), self.now());
        self.model.borrow_mut().settle(&requests, now);
        self.keys.borrow_mut().settle(&requests, now);
    }

    /// Judges an answer, if it is wrong once more when all is settled.
    fn judged(&self, judge: impl Fn() -> Result<(), String>) -> Result<(), String> {
        judge().or_else(|_| {
            self.settle();
            judge().inspect(|()| self.excuse("settled late"))
        })
    }

    /// Judges an answer of a replica that may not have heard of a removal. One whose store is slow, as on a busy machine, says
    /// so in its log, or others took long since the promised bound: this answer keeps that one, and not the shorter one of the
    /// tests.
    fn judged_at(
        &self,
        at: Interval,
        log: impl FnOnce() -> String,
        judge: impl Fn() -> Result<(), String>,
    ) -> Result<(), String> {
        self.judged(&judge).or_else(|wrong| {
            let since = Interval { begun: at.begun.saturating_sub(REMOVAL_BOUND_IN_TROUBLE), ..at };
            if !log().contains(STORE_IS_SLOW) && slowest(&self.requests(), since, self.now()) < SLOW {
                return Err(wrong);
            }
            let set = |bound| {
                self.keys.borrow_mut().set_removal_bound(bound);
                self.model.borrow_mut().set_removal_bound(bound)
            };
            let before = set(Some(REMOVAL_BOUND_IN_TROUBLE));
            let judged = judge();
            set(before);
            judged.inspect(|()| self.excuse("judged by the promised bound"))
        })
    }

    fn count_key(&self, outcome: Outcome, is_s3: bool) {
        let outcome = match outcome {
            Outcome::Acknowledged => "acknowledged",
            Outcome::Refused => "refused",
            Outcome::Unknown => "unknown",
        };
        *self.puts_by_key.borrow_mut().entry((outcome, is_s3)).or_default() += 1;
    }

    /// Runs clients and faults in parallel for a while, and then checks the promises.
    async fn run(&self, group: &Group<'_>, dice: &mut Dice, time: Duration) {
        let clients: Vec<_> = (0..CLIENTS).map(|_| Client::new(self, group, dice.number()).run()).collect();
        let of_keys: Vec<_> =
            (0..KEY_CLIENTS).map(|_| KeyClient::new(self, group, dice.number()).run()).collect();
        let of_uploads: Vec<_> =
            (0..UPLOAD_CLIENTS).map(|_| UploadClient::new(self, group, dice.number()).run()).collect();
        let mishaps = async {
            group.suffer(dice, time).await;
            self.is_over.set(true);
        };
        tokio::join!(join_all(clients), join_all(of_keys), join_all(of_uploads), mishaps);
        group.recover().await;
        tokio::time::sleep(NEGATIVE_TTL).await;
        self.find_stored(group).await;
        KeyClient::new(self, group, 0).find_owed().await;
        let begun = self.now();
        let chunks = self.contexts.iter().flat_map(|(_, chunks)| chunks);
        let chunks: BTreeSet<SeqHash> = chunks.map(|chunk| chunk.seq_hash).collect();
        let held = group.sound_objects(&chunks).await;
        let at = self.since(begun);
        judge(self.judged(|| self.model.borrow_mut().held(at, &held)));
        if self.is_dry_run {
            let there = group.chunk_objects().await;
            let collected = self.stored.borrow().difference(&there).next().copied();
            judge(match collected {
                Some((seq_hash, object)) => Err(format!("a dry run collected {object} of {seq_hash}")),
                None => Ok(()),
            });
        }
    }

    /// What one acknowledged, all find.
    async fn find_stored(&self, group: &Group<'_>) {
        for (life, api) in group.live() {
            let reader = Client::new(self, group, life);
            for (tokens, chunks) in &self.contexts {
                let (begun, mut gone) = (Instant::now(), None);
                loop {
                    let loaded = reader.load(life, &api, (tokens, chunks), life % 2 == 0).await;
                    gone = gone.filter(|_| loaded == Loaded::Gone);
                    let (since, longest) = match loaded {
                        Loaded::Whole => break,
                        Loaded::Refused => (begun, SERVED_AGAIN),
                        Loaded::Gone => (*gone.get_or_insert_with(Instant::now), OFFERED_MAX),
                    };
                    assert!(since.elapsed() < longest, "{loaded:?} long after faults\n{}", group.log(life));
                    tokio::time::sleep(ASKED_AGAIN).await;
                }
            }
        }
    }
}

/// Ends the test with the first wrong answer.
fn judge(judged: Result<(), String>) {
    if let Err(wrong) = judged {
        panic!("{wrong}");
    }
}

async fn three_replicas(name: &str, store: &StoreConfig, is_sealed: bool) {
    let directory = TempDir::new().expect("a directory");
    let group = Group::start(store, directory.path(), is_sealed).await;
    let time = Duration::from_secs(wanted("KVASIR_TEST_PROCESS_SECONDS", SECONDS));
    let seed = wanted("KVASIR_TEST_PROCESS_SEED", time.as_secs());
    let (begun, mut dice, mut judged) = (Instant::now(), Dice::new(seed), BTreeMap::new());
    let (mut histories, mut puts) = (0, BTreeMap::new());
    loop {
        let left = time.saturating_sub(begun.elapsed());
        let is_patient = begun.elapsed() < time * PATIENCE && !short_of(&judged, &puts, &group).is_empty();
        if left <= LEFT_OVER && !is_patient {
            break;
        }
        let mut settings = Settings::FIRST;
        if histories > 0 {
            settings = Settings::draw(&mut dice);
            println!("{name}: {settings:?}");
            group.restart(settings).await;
        }
        let namespace = format!("history-{histories}");
        let registered = group.live()[0].1.prepare(&namespace).await;
        let history = History::new(histories, &settings, namespace, registered);
        let longest = if settings.dry_run { DRY_RUN } else { HISTORY };
        history.run(&group, &mut dice, left.clamp(3 * LEFT_OVER, longest)).await;
        if histories > 0 {
            rotation::rotate(&history, &group, settings.may_evict()).await;
        }
        let (model, uploads, excused) =
            (history.model.borrow(), history.uploads.ended(), history.excused.borrow());
        for (what, count) in model.judged().iter().chain(uploads.iter()).chain(excused.iter()) {
            *judged.entry(*what).or_insert(0) += count;
        }
        for (what, count) in history.puts_by_key.borrow().iter() {
            *puts.entry(*what).or_insert(0) += count;
        }
        histories += 1;
        println!(
            "{name}: {histories} histories after {:?}, {:?}: {judged:?}, PUTs by key, over S3: {puts:?}",
            begun.elapsed(),
            group.mishaps()
        );
    }
    let short = short_of(&judged, &puts, &group);
    assert!(short.is_empty(), "{short:?} of {judged:?}, {puts:?}, {:?}", group.mishaps());
}

/// The goals that were missed: a test that does not reach them proves nothing.
fn short_of(
    judged: &BTreeMap<&'static str, u64>,
    puts: &BTreeMap<(&'static str, bool), u64>,
    group: &Group<'_>,
) -> Vec<&'static str> {
    let of = |what| judged.get(what).copied().unwrap_or(0);
    let by_key = |what| puts.get(&what).copied().unwrap_or(0);
    let wanted = [
        ("puts", of("put"), 100),
        ("lookups that owed something", of("lookup that owed something"), 30),
        ("removals", of("removal"), 5),
        ("reads", of("read"), 100),
        ("named contexts", of("named"), 10),
        ("PUTs by key over REST", by_key(("acknowledged", false)), 10),
        ("PUTs by key over S3", by_key(("acknowledged", true)), 10),
        ("refused PUTs by key", by_key(("refused", true)), 10),
        ("completed uploads", of("upload completed"), 3),
        ("uploads completed after a kill", of("upload completed after a kill"), 1),
        ("uploads completed twice", of("upload completed twice"), 1),
        ("aborted uploads", of("upload aborted"), 2),
        ("mishaps", group.mishaps().values().sum(), 3),
    ];
    wanted.into_iter().filter(|(_, count, least)| count < least).map(|(what, ..)| what).collect()
}

#[tokio::test]
async fn over_files() {
    let directory = TempDir::new().expect("a directory");
    three_replicas("files", &file_store(directory.path()), false).await;
}

#[tokio::test]
async fn over_s3() {
    let server = S3Server::start(Default::default()).await;
    three_replicas("in-process S3, sealed", &server.config("judged"), true).await;
}

#[tokio::test]
async fn over_real_servers() {
    // A seed decides, so that they have both kinds of tenants.
    let is_sealed = wanted("KVASIR_TEST_PROCESS_SEED", SECONDS) % 2 == 1;
    for server in RealServer::all() {
        let store = server.config(&format!("judged-{}", std::process::id()));
        let name = format!("{}{}", server.name, if is_sealed { ", sealed" } else { "" });
        three_replicas(&name, &store, is_sealed).await;
    }
}
