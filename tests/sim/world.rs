//! Replicas that are killed, paused and cut off, a store that fails, and the model that judges their answers.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use futures::TryStreamExt;
use kvasir_container::Head;
use kvasir_storage::{WorkShare, gc::GcPolicy, salt_record, transitions::Transition};
use kvasir_store::layout::{ChunkKey, Key};
use kvasir_tests::{
    chunks::{self, Chunk},
    faulty::{Dice, Fault, FaultyStore, ZOMBIE_MAX},
    model::{Bounds, Keys, Model},
};
use kvasir_types::{Name, ObjectDigest, RootHash, SeqHash, TokenChain};
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{
    client::{self, Book, tenant},
    cluster::Cluster,
    node::{Cuts, Disk, JOURNAL_RETENTION, Node, Start, least_cut},
    traffic::PAUSES_AFTER_MAX,
};

/// Replicas of most simulations.
pub(crate) const REPLICAS: usize = 3;
pub(crate) const CONTEXTS: usize = 14;
/// Requests that go wrong, of a thousand.
const FAULTS: usize = 120;
/// How long a request without an answer may still take effect: its last retry, and the store's delay.
const UNKNOWN: Duration = Duration::from_secs(100 + ZOMBIE_MAX.as_secs());
/// How often a replica is asked at the end until all that it offers can be read.
const READS_OF_OFFERED: usize = 5;
/// Twice as long as misses are remembered.
const NEGATIVE_TTL: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(20);
const TOMBSTONE_RETENTION: Duration = Duration::from_secs(200);

/// How a simulation ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub wrong: Vec<String>,
    pub kept: usize,
    pub kept_keys: usize,
    /// How often an upload in parts ended in which way.
    pub uploads: BTreeMap<&'static str, u64>,
    pub delivered: usize,
    /// Answers that were judged.
    pub judged: BTreeMap<&'static str, u64>,
    /// Bodies that were handed out wrong, and of these the misdirected ones.
    pub corruptions: (u64, u64),
    pub injected: [u64; Fault::ALL.len()],
    pub cuts: BTreeMap<Transition, u64>,
    pub trace: (u64, String),
    /// Replicas that began with a disk of another, and with an empty one.
    pub restarts: [u64; 2],
    /// Situations of clients that follow routes.
    pub situations: BTreeMap<&'static str, u64>,
}

/// The data that the collector may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Everything,
    Until(Duration),
    /// Keeps at most this many bytes.
    Bytes(u64),
}

pub(crate) struct World {
    /// How many run, or one more, but for those that are paused.
    replicas: usize,
    pub(crate) store: FaultyStore,
    pub(crate) dice: Dice,
    pub(crate) book: Rc<Book>,
    pub(crate) nodes: Vec<(Node, Option<Transition>)>,
    keeps: Keeps,
    /// The first of the transitions to be cut.
    turn: usize,
    lives: u64,
    /// Of replicas that ended, until a successor gets them or they are wiped.
    disks: Vec<Disk>,
    pub(crate) root: RootHash,
    pub(crate) contexts: Vec<(Vec<u32>, Vec<Chunk>)>,
    /// Block hashes of the contexts.
    pub(crate) blocks: Vec<Rc<[SeqHash]>>,
    /// Without it clients ask anybody.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) pins: Vec<(u64, Uuid)>,
    pub(crate) pinned: u64,
    pub(crate) paused: Vec<(Node, Instant)>,
    pub(crate) cut_off: Vec<(Node, Instant)>,
    pub(crate) roots: BTreeMap<Name, RootHash>,
    cuts: Cuts,
    pub(crate) large: u8,
    restarts: [u64; 2],
}

impl World {
    pub(crate) async fn new(seed: u64, replicas: usize, by_routes: bool) -> Self {
        let store = FaultyStore::new(seed, FAULTS, seed % 2 == 1);
        if seed.is_multiple_of(3) {
            store.be_honest();
        }
        if seed % 5 == 4 {
            store.let_in_an_adversary(seed).await;
        }
        let mut dice = Dice::new(!seed);
        let first = Node::cold(0, &store, &mut dice).await;
        // What is written once, in peace; with a salt that the seed decides.
        let salt = first.storage.store().layout().path(&Key::Salt { tenant: tenant() });
        let record = salt_record(&tenant(), &[seed as u8; 32]);
        store.inner().put(&salt, record.into()).await.expect("memory");
        let root = loop {
            // Until it goes through: registering is idempotent.
            if let Ok(root) = client::join(&first.storage, &tenant()).await {
                break root;
            }
            // While the breaker is open answers come at once: without a pause simulated time would stand still.
            sleep(Duration::from_secs(1)).await;
        };
        let contexts = (0..CONTEXTS).map(|i| {
            let chunk_tokens = [256, 512, 1536][dice.below(3)];
            // Ends of contexts are no ends of blocks: behind one, a lookup would not ask for the longer chunks of others.
            let count = (300 + dice.below(1_800)) | 1;
            let mut tokens = chunks::tokens(seed * 100 + i as u64 / 2, count);
            // Pairs share a beginning.
            let split = dice.below(tokens.len());
            tokens[split] ^= 1;
            let chunks = chunks::context(root, &tokens, chunk_tokens, 20 + dice.below(200));
            (tokens, chunks)
        });
        let contexts: Vec<(Vec<u32>, Vec<Chunk>)> = contexts.collect();
        let blocks = contexts.iter().map(|(tokens, _)| TokenChain::new(root, tokens).blocks().into());
        let blocks: Vec<Rc<[SeqHash]>> = blocks.collect();
        let keeps = match seed / 2 % 4 {
            0 | 1 => Keeps::Everything,
            2 => Keeps::Until(Duration::from_secs(120)),
            _ => Keeps::Bytes(12_000),
        };
        let ttl = match keeps {
            Keeps::Everything => None,
            Keeps::Until(ttl) => Some(ttl),
            Keeps::Bytes(_) => Some(Duration::ZERO),
        };
        let bounds = Bounds {
            unknown: UNKNOWN,
            negative_ttl: NEGATIVE_TTL,
            removal: None,
            tombstone: TOMBSTONE_RETENTION,
            ttl,
        };
        let book = Book::new(store.clone(), Model::new(bounds), Keys::new(bounds, GRACE));
        let mut this = Self {
            replicas,
            store,
            dice,
            book: Rc::new(book),
            nodes: Vec::new(),
            keeps,
            // By ones: with a step that shares a factor with their number, most transitions would never be the first.
            turn: seed as usize,
            lives: 0,
            disks: Vec::new(),
            root,
            contexts,
            blocks,
            cluster: by_routes.then(|| Cluster::new(seed)),
            pins: Vec::new(),
            pinned: 0,
            paused: Vec::new(),
            cut_off: Vec::new(),
            roots: BTreeMap::new(),
            cuts: Cuts::default(),
            large: 0,
            restarts: [0; 2],
        };
        for _ in 0..replicas {
            this.add().await;
        }
        this
    }

    pub(crate) fn policy(&self) -> GcPolicy {
        GcPolicy {
            grace: GRACE,
            tombstone_retention: TOMBSTONE_RETENTION,
            journal_retention: JOURNAL_RETENTION,
            ttl: if let Keeps::Until(ttl) = self.keeps { Some(ttl) } else { None },
            capacity_bytes: if let Keeps::Bytes(bytes) = self.keeps { Some(bytes) } else { None },
            actions_per_second: 0,
            ..GcPolicy::default()
        }
    }

    fn life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// A new replica, mostly one that will die at a chosen transition: with the disk of one that ended, however long ago,
    /// or with an empty one.
    async fn add(&mut self) {
        let pending: Vec<_> = self.nodes.iter().map(|(_, cut)| *cut).collect();
        let cut = self.dice.chance(600).then(|| least_cut(&self.cuts, &pending, &self.store, self.turn));
        let wiped = self.disks.is_empty() || self.dice.chance(400);
        let disk =
            if wiped { Disk::default() } else { self.disks.swap_remove(self.dice.below(self.disks.len())) };
        let is_hot = self.dice.chance(500);
        let tracks_uses = matches!(self.keeps, Keeps::Bytes(_));
        let start = Start { id: self.life(), disk, is_hot, cut, tracks_uses };
        let node = start.over(&self.store, &mut self.dice, &self.cuts).await;
        self.restarts[usize::from(wiped)] += 1;
        self.nodes.push((node, cut));
    }

    /// A replica that has nothing and takes part in nothing else.
    pub(crate) async fn cold(&mut self) -> Node {
        let id = self.life();
        Node::cold(id, &self.store, &mut self.dice).await
    }

    pub(crate) fn any(&mut self) -> Node {
        let at = self.dice.below(self.nodes.len());
        self.nodes[at].0.clone()
    }

    /// Removes dead replicas, ends pauses, and adds new replicas.
    pub(crate) async fn renew(&mut self) {
        let now = Instant::now();
        for (node, _) in self.paused.extract_if(.., |(_, until)| *until <= now) {
            node.life.pause(false);
            self.nodes.push((node, None));
        }
        for (node, _) in self.cut_off.extract_if(.., |(_, until)| *until <= now) {
            node.life.cut_off_from_journal(false);
        }
        let ended = self.nodes.extract_if(.., |(node, _)| node.life.is_over());
        self.disks.extend(ended.map(|(node, _)| node.disk));
        let wanted = self.replicas + self.dice.below(2);
        while self.nodes.len() < wanted {
            self.add().await;
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.renew(&self.nodes);
        }
    }

    /// Ends all faults; every replica must then find the promised data, and the store must hold it byte for
    /// byte.
    pub(crate) async fn end(mut self) -> Outcome {
        // A pause that was decided on last may still begin, and nobody would end it.
        sleep(PAUSES_AFTER_MAX).await;
        for (node, _) in std::mem::take(&mut self.paused) {
            node.life.pause(false);
            self.nodes.push((node, None));
        }
        self.nodes.iter().for_each(|(node, _)| node.life.cut_off_from_journal(false));
        if let Some(cluster) = &mut self.cluster {
            cluster.heal();
        }
        self.store.heal();
        sleep(UNKNOWN * 2).await;
        let cold = self.cold().await;
        let policy = self.policy();
        for pass in 0..4 {
            let nodes: Vec<Node> = self.nodes.iter().map(|(node, _)| node.clone()).collect();
            for node in nodes.iter().chain([&cold]) {
                self.book.sync(node).await;
                for (tokens, _) in &self.contexts {
                    self.book.load(node, self.root, tokens, pass % 2 == 0).await;
                }
            }
            self.hold().await;
            self.book.collect(&cold, &policy, &WorkShare::WHOLE).await;
            sleep(GRACE + Duration::from_secs(2)).await;
        }
        self.find_no_parts(&cold).await;
        let owed = self.book.model().owed(self.book.now());
        for seq_hash in &owed {
            if let Err(problem) = self.is_there(&cold, seq_hash).await {
                self.book.judge(Err(format!("{seq_hash} is lost: {problem}")));
            }
        }
        let nodes: Vec<Node> = self.nodes.iter().map(|(node, _)| node.clone()).collect();
        let mut kept_keys = 0;
        for node in nodes.iter().filter(|node| !node.life.is_over()).chain([&cold]) {
            self.read_all_offered(node).await;
            kept_keys = self.book.find_owed_keys(node).await;
        }
        Outcome {
            wrong: self.book.wrong.take(),
            kept: owed.len(),
            kept_keys,
            uploads: self.book.uploads.take(),
            delivered: self.book.delivered.get(),
            judged: self.book.model().judged().clone(),
            corruptions: self.store.corruptions(),
            injected: self.store.injected(),
            cuts: self.cuts.lock().expect("not poisoned").clone(),
            trace: self.store.trace(),
            restarts: self.restarts,
            situations: self.cluster.map(|cluster| cluster.seen).unwrap_or_default(),
        }
    }

    /// After all faults, everything that a replica offers can be read there.
    async fn read_all_offered(&self, node: &Node) {
        // An adversary's objects are offered until somebody reads them.
        if self.book.model().judged().keys().any(|what| what.starts_with("tampered")) {
            return;
        }
        for (tokens, _) in &self.contexts {
            let mut is_whole = false;
            // A row of an object that is gone, such as a duplicate, is corrected by the read that misses it.
            for _ in 0..READS_OF_OFFERED {
                self.book.sync(node).await;
                is_whole = self.book.load(node, self.root, tokens, true).await;
                if is_whole {
                    break;
                }
            }
            // One that is cut meanwhile answers nothing.
            if !is_whole && !node.life.is_over() {
                self.book.judge(Err(format!("what {} offers cannot be read after all faults", node.id)));
            }
        }
    }

    /// Lets the model judge the contents of the bucket.
    pub(crate) async fn hold(&self) {
        if self.pins.is_empty() {
            return;
        }
        let begun = self.book.now();
        let Some((node, _)) = self.nodes.first() else { return };
        let (layout, truth) = (&node.storage.store().layout(), self.store.inner());
        let listed: Vec<_> = truth.list(None).try_collect().await.expect("memory");
        let mut held = Vec::new();
        for meta in listed {
            let Some(Key::Chunk(key)) = layout.parse(&meta.location) else { continue };
            let bytes = truth.get(&meta.location).await.expect("memory").bytes().await.expect("memory");
            if ObjectDigest::of(&bytes) == key.object_digest {
                held.push((key.seq_hash, key.object_digest));
            }
        }
        self.book.judge(self.book.model().held(self.book.since(begun), &held));
    }

    /// Whether the store itself has a sound object of the chunk that no tombstone hides.
    async fn is_there(&self, reader: &Node, seq_hash: &SeqHash) -> Result<(), String> {
        let (layout, truth) = (&reader.storage.store().layout(), self.store.inner());
        let prefix = layout.chunk_prefix(&tenant(), &client::model_id(), seq_hash);
        let listed: Vec<_> = truth.list(Some(&prefix)).try_collect().await.map_err(|e| e.to_string())?;
        let (mut hidden, mut unsound) = (0, 0);
        for meta in listed {
            let Some(Key::Chunk(key)) = layout.parse(&meta.location) else { continue };
            let bytes = truth.get(&meta.location).await.map_err(|e| e.to_string())?;
            let bytes = bytes.bytes().await.map_err(|e| e.to_string())?;
            let is_sound = Head::parse(&bytes).is_ok_and(|head| head.header.seq_hash == *seq_hash)
                && ObjectDigest::of(&bytes) == key.object_digest;
            let is_hidden = truth.head(&layout.path(&Key::Tombstone(ChunkKey { ..key }))).await.is_ok();
            unsound += usize::from(!is_sound);
            hidden += usize::from(is_sound && is_hidden);
            if is_sound && !is_hidden {
                return Ok(());
            }
        }
        Err(format!("no sound object, {hidden} hidden, {unsound} unsound"))
    }
}
