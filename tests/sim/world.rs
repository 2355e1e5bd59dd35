//! Replicas that die, a store that fails, clients that check what they get, and the book of what was acknowledged.

use std::{collections::BTreeMap, time::Duration};

use futures::{TryStreamExt, future::join_all};
use kvasir_container::Head;
use kvasir_storage::{
    gc::GcPolicy,
    layout::{ChunkKey, Key},
    salt_record,
    transitions::Transition,
};
use kvasir_tests::{
    chunks::{self, Chunk},
    faulty::{Dice, Fault, FaultyStore, ZOMBIE_MAX},
};
use kvasir_types::{Name, ObjectDigest, RootHash, SeqHash};
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::time::{Instant, sleep};

use crate::{
    client::{self, tenant},
    node::{Cuts, Disk, Node, least_cut},
};

const REPLICAS: usize = 3;
const CONTEXTS: usize = 14;
/// Requests that go wrong, of a thousand.
const FAULTS: usize = 120;
/// How long a removal that was not answered may still take effect: its last retry, and the store's own delay.
const REMOVING: Duration = Duration::from_secs(100 + ZOMBIE_MAX.as_secs());

/// How long what a hot tier reads ahead may take: a head and a run of frames, each with all its retries and timeouts.
const READING_AHEAD: Duration = Duration::from_secs(400);

/// How a simulation ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub lost: Vec<String>,
    pub wrong: Vec<String>,
    pub kept: usize,
    pub delivered: usize,
    /// Bodies that were handed out wrong, and of these the misdirected ones.
    pub corruptions: (u64, u64),
    pub injected: [u64; Fault::ALL.len()],
    pub cuts: BTreeMap<Transition, u64>,
    pub trace: (u64, String),
    /// Replicas that began with a disk of another, and with an empty one.
    pub restarts: [u64; 2],
}

pub(crate) struct World {
    store: FaultyStore,
    dice: Dice,
    nodes: Vec<(Node, Option<Transition>)>,
    /// Of replicas that ended, until a successor gets them or they are wiped.
    disks: Vec<Disk>,
    root: RootHash,
    contexts: Vec<(Vec<u32>, Vec<Chunk>)>,
    /// Acknowledged and not removed since: what must be there at the end.
    acknowledged: BTreeMap<SeqHash, Instant>,
    removed: BTreeMap<SeqHash, Instant>,
    roots: BTreeMap<Name, RootHash>,
    cuts: Cuts,
    wrong: Vec<String>,
    delivered: usize,
    large: u8,
    /// Replicas that began with a disk of another, and with an empty one.
    restarts: [u64; 2],
}

impl World {
    pub(crate) async fn new(seed: u64) -> Self {
        let store = FaultyStore::new(seed, FAULTS, seed % 2 == 1);
        let mut dice = Dice::new(!seed);
        let cuts = Cuts::default();
        let first = Node::start(&store, &mut dice, None, &cuts);
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
            let mut tokens = chunks::tokens(seed * 100 + i as u64 / 2, 300 + dice.below(1_800));
            // Pairs share a beginning.
            let split = dice.below(tokens.len());
            tokens[split] ^= 1;
            let chunks = chunks::context(root, &tokens, chunk_tokens, 20 + dice.below(200));
            (tokens, chunks)
        });
        let contexts = contexts.collect();
        let mut this = Self {
            store,
            dice,
            nodes: Vec::new(),
            disks: Vec::new(),
            root,
            contexts,
            acknowledged: BTreeMap::new(),
            removed: BTreeMap::new(),
            roots: BTreeMap::new(),
            cuts,
            wrong: Vec::new(),
            delivered: 0,
            large: 0,
            restarts: [0; 2],
        };
        for _ in 0..REPLICAS {
            this.add();
        }
        this
    }

    /// A new replica, mostly one that will die at a chosen transition: with the disk of one that ended, however long ago,
    /// or with an empty one.
    fn add(&mut self) {
        let pending: Vec<_> = self.nodes.iter().map(|(_, cut)| *cut).collect();
        let cut = self.dice.chance(850).then(|| least_cut(&self.cuts, &pending, &self.store));
        let wiped = self.disks.is_empty() || self.dice.chance(400);
        let disk =
            if wiped { Disk::default() } else { self.disks.swap_remove(self.dice.below(self.disks.len())) };
        let is_hot = self.dice.chance(500);
        let node = Node::start_on(disk, is_hot, &self.store, &mut self.dice, cut, &self.cuts);
        self.restarts[usize::from(wiped)] += 1;
        self.nodes.push((node, cut));
    }

    fn any(&mut self) -> Node {
        let at = self.dice.below(self.nodes.len());
        self.nodes[at].0.clone()
    }

    /// Several requests at once, and now and then a mishap.
    pub(crate) async fn round(&mut self) {
        let ended = self.nodes.extract_if(.., |(node, _)| node.life.is_over());
        self.disks.extend(ended.map(|(node, _)| node.disk));
        let wanted = REPLICAS + self.dice.below(2);
        while self.nodes.len() < wanted {
            self.add();
        }
        match self.dice.below(12) {
            // Killed between two instructions of its choice.
            0 => self.any().life.end(),
            1 => self.remove().await,
            2 | 3 | 6 | 7 => self.newcomer().await,
            4 | 5 => self.store_large().await,
            _ => {}
        }
        Box::pin(self.traffic()).await;
        let pause = self.dice.below(12_000);
        sleep(Duration::from_millis(pause as u64)).await;
    }

    async fn traffic(&mut self) {
        let puts: Vec<_> = (0..3).map(|_| (self.any(), self.dice.below(CONTEXTS))).collect();
        let loads: Vec<_> =
            (0..4).map(|_| (self.any(), self.dice.below(CONTEXTS), self.dice.chance(500))).collect();
        let root = self.root;
        let collects = self.dice.chance(400);
        let (keeper, collector) = (self.any(), self.any());
        let keeping = keeper.run(async {
            let _ = keeper.storage.changes().journal_append().await;
            let _ = keeper.storage.changes().journal_tail().await;
        });
        let collecting = collector.run(async {
            if collects {
                let _ = collector.storage.lifecycle().collect_garbage(&policy(), |_| {}).await;
            }
        });
        let puts = puts.into_iter().map(|(node, at)| (node, self.contexts[at].1.clone()));
        let puts = puts.map(|(node, chunks)| async move {
            node.run(client::store_context(node.storage.clone(), chunks)).await.unwrap_or_default()
        });
        let loads = loads.into_iter().map(|(node, at, fresh)| (node, self.contexts[at].0.clone(), fresh));
        let loads = loads.map(|(node, tokens, fresh)| async move {
            node.run(client::load(node.storage.clone(), root, tokens, fresh)).await.unwrap_or(Ok(0))
        });
        let begun = Instant::now();
        let (stored, loaded, ..) = tokio::join!(join_all(puts), join_all(loads), keeping, collecting);
        for seq_hash in stored.into_iter().flatten() {
            self.acknowledge(seq_hash, begun);
        }
        for loaded in loaded {
            match loaded {
                Ok(count) => self.delivered += count,
                Err(wrong) => self.wrong.push(wrong),
            }
        }
    }

    /// Takes note of what was stored by a request that began at `begun`.
    fn acknowledge(&mut self, seq_hash: SeqHash, begun: Instant) {
        // A removal of unknown outcome may still come through: whose it is, nobody can count on.
        if self.removed.get(&seq_hash).is_none_or(|removed| begun > *removed + REMOVING) {
            self.acknowledged.insert(seq_hash, begun);
        }
    }

    async fn remove(&mut self) {
        let node = self.any();
        let at = self.dice.below(CONTEXTS);
        let chunks = &self.contexts[at].1;
        let seq_hash = chunks[self.dice.below(chunks.len())].seq_hash;
        let (tenant, model_id) = (tenant(), client::model_id());
        let _ = node.run(node.storage.lifecycle().remove_chunk(&tenant, &model_id, &seq_hash)).await;
        // Whether it went through or not: nobody may count on the chunk any more.
        self.acknowledged.remove(&seq_hash);
        self.removed.insert(seq_hash, Instant::now());
    }

    /// A tenant that several replicas meet for the first time in the same moment.
    async fn newcomer(&mut self) {
        let name: Name = format!("t{}", self.dice.below(1_000)).parse().expect("a name");
        let nodes: Vec<_> = (0..REPLICAS).map(|_| self.any()).collect();
        let joins = nodes.iter().map(|node| node.run(client::join(&node.storage, &name)));
        for root in join_all(joins).await.into_iter().flatten().flatten() {
            let known = *self.roots.entry(name.clone()).or_insert(root);
            if known != root {
                self.wrong.push(format!("replicas disagree about the root of {name}"));
            }
        }
    }

    /// An upload in parts. Alone: its spool file is on a disk that no simulated clock waits for, and whatever hot tiers still
    /// read ahead in that while would ask the store at moments that no seed decides.
    async fn store_large(&mut self) {
        sleep(READING_AHEAD).await;
        let node = self.any();
        let tokens = chunks::tokens(999, 16);
        self.large = self.large.wrapping_add(2);
        let chunk = chunks::variant(self.root, &tokens, 0, 16, 4_400_000, self.large);
        let begun = Instant::now();
        if let Some(Ok(_)) = node.run(client::store(&node.storage, &chunk)).await {
            self.acknowledge(chunk.seq_hash, begun);
        }
    }

    /// Everything heals; what was acknowledged must be there, byte for byte.
    pub(crate) async fn end(self) -> Outcome {
        self.store.heal();
        sleep(ZOMBIE_MAX * 2).await;
        let mut dice = self.dice.clone();
        let reader = Node::start(&self.store, &mut dice, None, &Cuts::default());
        let mut lost = Vec::new();
        for seq_hash in self.acknowledged.keys() {
            if let Err(problem) = self.is_there(&reader, seq_hash).await
                && !self.is_contained(&reader, seq_hash).await
            {
                lost.push(format!("{seq_hash}: {problem}"));
            }
        }
        Outcome {
            lost,
            wrong: self.wrong,
            kept: self.acknowledged.len(),
            delivered: self.delivered,
            corruptions: self.store.corruptions(),
            injected: self.store.injected(),
            cuts: self.cuts.lock().expect("not poisoned").clone(),
            trace: self.store.trace(),
            restarts: self.restarts,
        }
    }

    /// Whether a longer chunk that is there holds all of this one: then the collector may have taken it.
    async fn is_contained(&self, reader: &Node, seq_hash: &SeqHash) -> bool {
        let all = || self.contexts.iter().flat_map(|(_, chunks)| chunks);
        let Some(own) = all().find(|chunk| chunk.seq_hash == *seq_hash) else { return false };
        let own = Head::parse(&own.bytes).expect("made by this test");
        for chunk in all().filter(|chunk| chunk.seq_hash != *seq_hash) {
            let other = Head::parse(&chunk.bytes).expect("made by this test");
            if other.header.parent_hash == own.header.parent_hash
                && other.tokens.starts_with(&own.tokens)
                && self.is_there(reader, &chunk.seq_hash).await.is_ok()
            {
                return true;
            }
        }
        false
    }

    /// Whether the store itself has a sound object of the chunk that no tombstone hides.
    async fn is_there(&self, reader: &Node, seq_hash: &SeqHash) -> Result<(), String> {
        let (layout, truth) = (&reader.storage.store().layout(), self.store.inner());
        let prefix = layout.chunk_prefix(&tenant(), &client::model_id(), seq_hash);
        let listed: Vec<_> = truth.list(Some(&prefix)).try_collect().await.map_err(|e| e.to_string())?;
        let mut hidden = 0;
        for meta in listed {
            let Some(Key::Chunk(key)) = layout.parse(&meta.location) else { continue };
            let bytes = truth.get(&meta.location).await.map_err(|e| e.to_string())?;
            let bytes = bytes.bytes().await.map_err(|e| e.to_string())?;
            let head = Head::parse(&bytes).map_err(|e| e.to_string())?;
            if ObjectDigest::of(&bytes) != key.object_digest || head.header.seq_hash != *seq_hash {
                return Err("other bytes under a name".to_owned());
            }
            let buried = truth.head(&layout.path(&Key::Tombstone(ChunkKey { ..key }))).await.is_ok();
            hidden += usize::from(buried);
            if !buried {
                return Ok(());
            }
        }
        Err(format!("no object, {hidden} hidden"))
    }
}

fn policy() -> GcPolicy {
    GcPolicy {
        grace: Duration::from_secs(20),
        tombstone_retention: Duration::from_secs(200),
        journal_retention: Duration::from_secs(30),
        actions_per_second: 0,
        ..GcPolicy::default()
    }
}
