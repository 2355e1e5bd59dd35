//! The actions of clients, operators and collectors in a round, and the faults of the replicas during it.

use std::{rc::Rc, sync::Arc, time::Duration};

use futures::future::join_all;
use kvasir_api::ContextRequest;
use kvasir_storage::{WorkShare, gc::GcPolicy, hot::RequestHint};
use kvasir_tests::{
    chunks::{self, Chunk},
    faulty::Dice,
};
use kvasir_types::Name;
use tokio::time::{Instant, sleep};

use crate::{
    client::{self, Book, tenant},
    cluster::RoutedBy,
    keys::{self, KEYS, KEYS_OF_PUTS, VALUES},
    node::{Node, is_of_collector},
    uploads::UploadClient,
    world::{CONTEXTS, REPLICAS, World},
};

/// A pause begins within this time: in the middle of the pass that it is decided with.
pub(crate) const PAUSES_AFTER_MAX: Duration = Duration::from_millis(600);

/// Maximum time of a hot tier's read-ahead: a head and a run of frames, each with all its retries and
/// timeouts.
const READING_AHEAD: Duration = Duration::from_secs(400);
/// More objects of one chunk than a reader considers, and more names than one upload tries.
const MANY: u8 = 10;

impl Book {
    /// One pass of the collector over a share.
    pub(crate) async fn collect(&self, node: &Node, policy: &GcPolicy, share: &WorkShare) {
        let _ = node.run(node.storage.lifecycle().collect_garbage(policy, share, |_| {})).await;
    }
}

impl World {
    /// Several requests at once, and now and then a mishap.
    pub(crate) async fn round(&mut self) {
        self.renew().await;
        if self.dice.chance(400) {
            self.store.calm(Duration::from_secs(15));
        }
        match self.dice.below(24) {
            // Killed between two instructions of its choice.
            0 | 1 => self.any().life.end(),
            2..4 => self.newcomer().await,
            4 => self.store_large().await,
            5 | 6 => self.duel().await,
            7 => self.many_objects().await,
            8 => self.many_cycles().await,
            9 | 10 => self.pause(),
            11 | 12 => self.cut_off(),
            13 => self.unpin().await,
            _ => {}
        }
        self.part();
        Box::pin(self.traffic()).await;
        if self.dice.chance(300) {
            self.hold().await;
        }
        let pause = self.dice.below(12_000);
        sleep(Duration::from_millis(pause as u64)).await;
    }

    fn any_chunk(&mut self) -> Chunk {
        let at = self.dice.below(CONTEXTS);
        let chunks = &self.contexts[at].1;
        chunks[self.dice.below(chunks.len())].clone()
    }

    /// What a replica takes for its part of the work: its list of members need not be that of any other.
    fn work_share(&mut self, node: &Node) -> WorkShare {
        if let Some(share) = self.listed_share(node) {
            return share;
        }
        if !self.dice.chance(if self.nodes.len() > REPLICAS { 800 } else { 200 }) {
            return WorkShare::WHOLE;
        }
        let members = 2 + self.dice.below(2);
        let this = self.dice.below(members);
        let members = (0..members).map(|n| (format!("http://r{n}:7480"), 1.0)).collect();
        WorkShare::of(members, this, self.dice.chance(500))
    }

    /// Who makes a pass: often one that is to die in it. Few passes get to their end, so few die there by chance.
    fn collector(&mut self) -> Node {
        let live = self.nodes.iter().filter(|(node, _)| !node.life.is_over());
        let due = live.filter(|(_, cut)| cut.is_some_and(is_of_collector));
        let due: Vec<Node> = due.map(|(node, _)| node.clone()).collect();
        if due.is_empty() || self.dice.chance(500) {
            return self.any();
        }
        due[self.dice.below(due.len())].clone()
    }

    /// A context, and who is asked for it.
    fn ask_for_a_context(&mut self) -> ((Node, RequestHint), usize) {
        let (given, at) = (self.any(), self.dice.below(CONTEXTS));
        let prompt = RoutedBy::Prompt(Rc::clone(&self.blocks[at]));
        (self.ask(given, &prompt), at)
    }

    async fn traffic(&mut self) {
        let book = Rc::clone(&self.book);
        let puts: Vec<_> = (0..3).map(|_| self.ask_for_a_context()).collect();
        let loads: Vec<_> = (0..4).map(|_| (self.ask_for_a_context(), self.dice.chance(500))).collect();
        let removals = self.dice.below(12).saturating_sub(9);
        let removals: Vec<_> = (0..removals).map(|_| (self.any(), self.any_chunk())).collect();
        let (namer, named) = (self.any(), self.any_chunk());
        let collectors = self.dice.below(3).saturating_sub(usize::from(self.dice.chance(600)));
        let collectors: Vec<_> = (0..collectors)
            .map(|_| {
                let node = self.collector();
                let share = self.work_share(&node);
                (node, share)
            })
            .collect();
        let keepers: Vec<_> = self.nodes.iter().map(|(node, _)| node.clone()).collect();
        let asked = |world: &mut Self, keys: u8| {
            let (given, key) = (world.any(), world.dice.below(keys.into()) as u8);
            (world.ask(given, &RoutedBy::Key(keys::route(key))).0, key)
        };
        let key_puts: Vec<_> =
            (0..3).map(|_| (asked(self, KEYS_OF_PUTS), self.dice.below(VALUES.into()) as u8)).collect();
        let key_gets: Vec<_> = (0..4).map(|_| asked(self, KEYS)).collect();
        let key_removal = self.dice.chance(150).then(|| asked(self, KEYS));
        let uploads = self.dice.below(5).saturating_sub(2);
        let uploads: Vec<_> = (0..uploads)
            .map(|_| UploadClient::new(Rc::clone(&book), keepers.clone(), Dice::new(self.dice.number())))
            .collect();
        let (pinner, pins) = (self.any(), self.dice.chance(350));
        let (pinned, delay) = (self.dice.below(CONTEXTS), self.dice.below(4_000));
        let policy = self.policy();
        let (root, contexts) = (self.root, &self.contexts);
        let puts = puts.iter().map(|((node, hint), at)| book.store_as(node, hint, &contexts[*at].1));
        let loads = loads
            .iter()
            .map(|(((node, hint), at), fresh)| book.load_as(node, hint, root, &contexts[*at].0, *fresh));
        let removals = removals.iter().map(|(node, chunk)| book.remove(node, chunk));
        let collecting = collectors.iter().map(|(node, share)| book.collect(node, &policy, share));
        let keeping = keepers.iter().map(|node| book.sync(node));
        let pinning = async {
            if pins {
                // While passes run.
                sleep(Duration::from_millis(delay as u64)).await;
                return book.pin(&pinner, self.pinned, &contexts[pinned].1).await;
            }
            None
        };
        let key_puts = key_puts.iter().map(|((node, key), value)| book.put_key(node, *key, *value));
        let key_gets = key_gets.iter().map(|(node, key)| book.get_key(node, *key));
        let key_removal = key_removal.iter().map(|(node, key)| book.remove_key(node, *key));
        let (.., pin) = tokio::join!(
            join_all(puts),
            join_all(loads),
            join_all(removals),
            join_all(collecting),
            join_all(keeping),
            book.name(&namer, &named),
            join_all(key_puts),
            join_all(key_gets),
            join_all(key_removal),
            join_all(uploads.into_iter().map(UploadClient::run)),
            pinning
        );
        if let Some(context) = pin {
            self.pins.push((self.pinned, context));
            self.pinned += 1;
        }
    }

    /// A chunk that is stored and removed in the same moment, mostly by one replica.
    async fn duel(&mut self) {
        let (book, chunk) = (Rc::clone(&self.book), self.any_chunk());
        let (writer, other) = (self.any(), self.any());
        let remover = if self.dice.chance(700) { writer.clone() } else { other };
        let delay = Duration::from_millis(self.dice.below(400) as u64);
        let remove = async {
            sleep(delay).await;
            book.remove(&remover, &chunk).await;
        };
        tokio::join!(book.store(&writer, std::slice::from_ref(&chunk)), remove);
        let context = self.contexts.iter().find(|(_, all)| all.iter().any(|c| c.seq_hash == chunk.seq_hash));
        let Some((tokens, _)) = context.cloned() else { return };
        let cold = self.cold().await;
        // What the writer knows by itself comes first: if it offers the chunk, the chunk outlived its removal and is owed to all.
        for (node, fresh) in [(&writer, false), (&writer, true), (&cold, true)] {
            book.load(node, self.root, &tokens, fresh).await;
        }
    }

    fn short(&self, n: u64) -> (Vec<u32>, Chunk) {
        let tokens = chunks::tokens(777 + n, 256);
        let chunk = chunks::chunk(self.root, &tokens, 0, 256, 20);
        (tokens, chunk)
    }

    /// More objects of one chunk than a reader considers; then the chunk is removed.
    async fn many_objects(&mut self) {
        self.store.calm(Duration::from_secs(15));
        let book = Rc::clone(&self.book);
        let which = self.dice.below(3) as u64;
        let (tokens, _) = self.short(which);
        let writer = self.any();
        let variants: Vec<Chunk> =
            (0..MANY).map(|v| chunks::variant(self.root, &tokens, 0, 256, 20, v * 8)).collect();
        book.store(&writer, &variants).await;
        // One replica has read of the objects and not of their removal, one begins after it.
        let unaware = self.cold().await;
        for node in [&writer, &unaware] {
            book.sync(node).await;
        }
        let remover = self.any();
        book.remove(&remover, &variants[0]).await;
        book.name(&self.any(), &variants[0]).await;
        let cold = self.cold().await;
        book.sync(&cold).await;
        for node in [&remover, &unaware, &cold] {
            book.load(node, self.root, &tokens, true).await;
        }
    }

    /// A chunk that is stored and removed again and again, within the grace.
    async fn many_cycles(&mut self) {
        self.store.calm(Duration::from_secs(18));
        let book = Rc::clone(&self.book);
        let which = 10 + self.dice.below(2) as u64;
        let (tokens, chunk) = self.short(which);
        let (writer, remover) = (self.any(), self.any());
        for _ in 0..MANY {
            book.store(&writer, std::slice::from_ref(&chunk)).await;
            book.remove(&remover, &chunk).await;
        }
        book.store(&writer, std::slice::from_ref(&chunk)).await;
        let cold = self.cold().await;
        book.load(&cold, self.root, &tokens, true).await;
        book.name(&cold, &chunk).await;
    }

    /// A replica whose requests and answers hang for a while, mostly in the middle of a pass.
    fn pause(&mut self) {
        if self.nodes.len() < 2 {
            return;
        }
        let at = self.dice.below(self.nodes.len());
        let (node, _) = self.nodes.swap_remove(at);
        let (collector, policy, share) = (node.clone(), self.policy(), self.work_share(&node));
        tokio::spawn(async move {
            let storage = Arc::clone(&collector.storage);
            let _ = collector.run(storage.lifecycle().collect_garbage(&policy, &share, |_| {})).await;
        });
        let (pause, after) = (self.dice.below(400), self.dice.below(PAUSES_AFTER_MAX.as_millis() as usize));
        let life = node.life.clone();
        tokio::spawn(async move {
            sleep(Duration::from_millis(after as u64)).await;
            life.pause(true);
        });
        self.paused.push((node, Instant::now() + Duration::from_secs(2 + pause as u64)));
    }

    /// A replica that cannot reach the journal for a while, and everything else.
    fn cut_off(&mut self) {
        let node = self.any();
        node.life.cut_off_from_journal(true);
        let seconds = self.dice.below(120) as u64;
        self.cut_off.push((node, Instant::now() + Duration::from_secs(seconds)));
    }

    async fn unpin(&mut self) {
        if self.pins.is_empty() {
            return;
        }
        let (pin, context) = self.pins.swap_remove(self.dice.below(self.pins.len()));
        self.book.model().unpin(pin, self.book.now());
        let node = self.any();
        let _ = node.run(node.storage.contexts().delete(&tenant(), context)).await;
    }

    /// A tenant that several replicas meet for the first time in the same moment.
    async fn newcomer(&mut self) {
        let name: Name = format!("t{}", self.dice.below(1_000)).parse().expect("a name");
        let nodes: Vec<_> = (0..REPLICAS).map(|_| self.any()).collect();
        let joins = nodes.iter().map(|node| node.run(client::join(&node.storage, &name)));
        for root in join_all(joins).await.into_iter().flatten().flatten() {
            let known = *self.roots.entry(name.clone()).or_insert(root);
            if known != root {
                self.book.judge(Err(format!("replicas disagree about the root of {name}")));
            }
        }
    }

    /// An upload in parts. It runs alone: its spool file is on a disk that no simulated clock waits for, and
    /// read-aheads of hot tiers during that time would reach the store at moments that no seed determines.
    async fn store_large(&mut self) {
        let until = Instant::now() + READING_AHEAD;
        while Instant::now() < until {
            self.renew().await;
            join_all(self.nodes.iter().map(|(node, _)| self.book.sync(node))).await;
            sleep(Duration::from_secs(8)).await;
        }
        let node = self.any();
        let tokens = chunks::tokens(999, 16);
        self.large = self.large.wrapping_add(2);
        let chunk = chunks::variant(self.root, &tokens, 0, 16, 4_400_000, self.large);
        self.book.store(&node, std::slice::from_ref(&chunk)).await;
    }
}

impl Book {
    /// Pins the first chunks of a context. Returns the context if it was acknowledged.
    async fn pin(&self, node: &Node, pin: u64, chunks: &[Chunk]) -> Option<uuid::Uuid> {
        let chunks = &chunks[..chunks.len().min(2)];
        let request = ContextRequest {
            model_id: client::model_id(),
            namespace: client::namespace(),
            chunks: chunks.iter().map(|chunk| chunk.seq_hash).collect(),
            labels: Default::default(),
            ttl_s: None,
            pinned: true,
        };
        let begun = self.now();
        let context = node.run(node.storage.contexts().create(&tenant(), request)).await?.ok()?;
        let chunks: Vec<&Chunk> = chunks.iter().collect();
        self.pinned(pin, context.context_id, self.since(begun), &chunks);
        Some(context.context_id)
    }
}
