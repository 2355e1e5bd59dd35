//! Which replica a client asks: by the product's ranking, over lists of members that are late and differ.
//!
//! DNS knows who runs. Replicas ask it again and again; the answer may be old, or stay away for minutes. Clients take over the
//! list of a replica that answers them. So any two may have different lists, as in service, only for longer. Some replicas are
//! cut off from the store for a while, others from the clients that have lists.
//!
//! Members have zones and weights. A replica splits routes that clients name, as if they were crowded, and tells the clients that
//! it answers: so clients route one prompt by prefixes of different lengths, too.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use kvasir_api::{Member, MembersResponse, ROUTE_REPLICAS};
use kvasir_storage::{JournalReading, WorkShare, hot::RequestHint, transitions::Transition};
use kvasir_tests::{
    faulty::{Dice, Life},
    model::Replica,
};
use kvasir_types::{Name, RouteKey, SeqHash};
use tokio::time::Instant;

use crate::{node::Node, world::World};

/// Clients. The first never has a list, as behind a plain balancer.
const CLIENTS: usize = 4;
/// Zones. Every fourth replica and one of the clients with lists name none.
const ZONES: [&str; 3] = ["a", "b", "c"];
/// How often a replica asks DNS.
const ASKED_EVERY: Duration = Duration::from_secs(5);

/// Situations that are counted, because a simulation without them shows nothing.
pub(crate) const BY_LIST: &str = "request by a list";
pub(crate) const BY_ANOTHER_LIST: &str = "request by another list than its replica's";
pub(crate) const SPLIT_EPOCHS: &str = "round in which replicas had different lists";
pub(crate) const SLOW_DNS: &str = "answer of DNS that was old or stayed away";
pub(crate) const PASSED_OVER: &str = "keeper that had ended, hung or was cut off";
const BY_A_SPLIT: &str = "request by a longer route, because its client knew of a split";
const UNTOLD_SPLIT: &str = "request by a route that its replica had split";
const ZONE_FIRST: &str = "request for whose client the second keeper was in its zone, and the first was not";
const ELSEWHERE: &str = "request at a replica that leaves its route to others";
const WITHOUT_STORE: &str = "request at a replica that was cut off from the store";
pub(crate) const WITHOUT_CLIENTS: &str = "replica that was cut off from clients";

/// All of them.
pub(crate) const SITUATIONS: [&str; 11] = [
    BY_LIST,
    BY_ANOTHER_LIST,
    SPLIT_EPOCHS,
    SLOW_DNS,
    PASSED_OVER,
    BY_A_SPLIT,
    UNTOLD_SPLIT,
    ZONE_FIRST,
    ELSEWHERE,
    WITHOUT_STORE,
    WITHOUT_CLIENTS,
];

type List = Rc<MembersResponse>;
type Nodes = [(Node, Option<Transition>)];

/// What decides the route of a request.
#[derive(Debug)]
pub(crate) enum RoutedBy {
    /// The block hashes of a prompt, and which of its routes are split.
    Prompt(Rc<[SeqHash]>),
    /// The route of a key, which is never split.
    Key(RouteKey),
}

/// The members as one replica knows them, and what it has split.
#[derive(Debug)]
struct View {
    list: Option<List>,
    asks_at: Instant,
    /// Routes, each with the longer ones that were split with it.
    splits: BTreeMap<RouteKey, Vec<RouteKey>>,
}

/// What a client has learnt from the answers of replicas.
#[derive(Debug)]
struct Client {
    zone: Option<Name>,
    list: Option<List>,
    splits: BTreeSet<RouteKey>,
}

impl Client {
    fn route(&self, by: &RoutedBy) -> RouteKey {
        match by {
            RoutedBy::Prompt(blocks) => {
                RouteKey::of(blocks, |key| self.splits.contains(key)).expect("a prompt is not empty")
            }
            RoutedBy::Key(key) => *key,
        }
    }
}

/// Who is listed where, and who reaches whom.
#[derive(Debug)]
pub(crate) struct Cluster {
    dice: Dice,
    /// What DNS knew from when on, latest last.
    dns: Vec<(Instant, List)>,
    replicas: BTreeMap<Replica, View>,
    clients: [Client; CLIENTS],
    without_store: Vec<(Replica, Life, Instant)>,
    without_clients: Vec<(Replica, Instant)>,
    pub(crate) seen: BTreeMap<&'static str, u64>,
}

/// The zone with a number, if it has one.
fn zone(number: u64) -> Option<Name> {
    let name = ZONES.get((number % 4) as usize)?;
    Some(name.parse().expect("a name"))
}

/// A member's URL, and so its identity: one that starts again is another.
fn url(replica: Replica) -> String {
    format!("http://r{replica}:7480")
}

fn list_of(nodes: &Nodes) -> List {
    let weight = |id: Replica| if id.is_multiple_of(5) { 2.0 } else { 1.0 };
    let member =
        |(node, _): &(Node, _)| Member { url: url(node.id), zone: zone(node.id), weight: weight(node.id) };
    let mut members: Vec<Member> = nodes.iter().map(member).collect();
    members.sort_by(|a, b| a.url.cmp(&b.url));
    let epoch = MembersResponse::epoch_of(&members);
    Rc::new(MembersResponse { epoch, members, this: None, splits: Vec::new() })
}

fn place_in(list: &MembersResponse, replica: Replica) -> Option<usize> {
    let url = url(replica);
    list.members.iter().position(|member| member.url == url)
}

/// Whether a replica leaves a route to others, by its own list.
fn is_elsewhere(own: &MembersResponse, replica: Replica, route: &RouteKey) -> bool {
    let Some(this) = place_in(own, replica) else { return false };
    !own.rank(route).into_iter().take(ROUTE_REPLICAS).any(|member| member == this)
}

impl Cluster {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            // Of its own: without routes a seed is what it was.
            dice: Dice::new(seed.wrapping_add(1 << 40)),
            dns: Vec::new(),
            replicas: BTreeMap::new(),
            // The second names no zone.
            clients: std::array::from_fn(|nth| Client {
                zone: zone(nth as u64 + 2),
                list: None,
                splits: BTreeSet::new(),
            }),
            without_store: Vec::new(),
            without_clients: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Ends partitions, lets DNS know who runs, and lets those ask it whose time has come.
    pub(crate) fn renew(&mut self, nodes: &Nodes) {
        let now = Instant::now();
        self.without_clients.retain(|(_, until)| *until > now);
        for (_, life, _) in self.without_store.extract_if(.., |(.., until)| *until <= now) {
            life.cut_off_from_store(false);
        }
        let current = list_of(nodes);
        if self.dns.last().is_none_or(|(_, last)| last.epoch != current.epoch) {
            self.dns.push((now, Rc::clone(&current)));
        }
        for (node, _) in nodes {
            self.ask_dns(node.id, now, &current);
        }
        let lists = nodes.iter().filter_map(|(node, _)| self.own(node.id));
        if lists.map(|list| list.epoch.clone()).collect::<BTreeSet<_>>().len() > 1 {
            self.count(SPLIT_EPOCHS);
        }
    }

    fn ask_dns(&mut self, replica: Replica, now: Instant, current: &List) {
        let view = self.replicas.entry(replica).or_insert_with(|| View {
            list: None,
            asks_at: now,
            splits: BTreeMap::new(),
        });
        if view.asks_at > now {
            return;
        }
        let kind = self.dice.below(10);
        if kind == 0 {
            // No answer: the former list stays.
            view.asks_at = now + Duration::from_secs(30 + self.dice.below(300) as u64);
            return self.count(SLOW_DNS);
        }
        view.asks_at = now + ASKED_EVERY;
        let age = Duration::from_secs(if kind < 4 { 10 + self.dice.below(110) as u64 } else { 0 });
        let answer = self.dns.iter().rev().find(|(from, _)| *from + age <= now).or(self.dns.first());
        view.list = answer.map(|(_, list)| Rc::clone(list));
        if view.list.as_ref().is_some_and(|list| list.epoch != current.epoch) {
            self.count(SLOW_DNS);
        }
    }

    fn own(&self, replica: Replica) -> Option<&List> {
        self.replicas.get(&replica)?.list.as_ref()
    }

    /// Where a client sends a request of a route, and what the replica takes it for. `given` has the address that all clients
    /// were given.
    fn ask(&mut self, nodes: &Nodes, given: Node, by: &RoutedBy) -> (Node, RequestHint) {
        let client = self.dice.below(CLIENTS);
        if self.dice.chance(20) {
            // It has not asked for so long that it takes nothing for split.
            self.clients[client].splits.clear();
        }
        let (known, route) = (self.clients[client].list.clone(), self.clients[client].route(by));
        let keeper = known.as_ref().and_then(|list| self.keeper(nodes, client, list, &route));
        let node = keeper.unwrap_or(given);
        let own = self.own(node.id).cloned();
        let differs = own.as_ref().map(|own| &own.epoch) != known.as_ref().map(|list| &list.epoch);
        // Without a list a client names no route.
        let transient = known.is_some() && own.as_ref().is_some_and(|own| is_elsewhere(own, node.id, &route));
        if known.is_some() {
            self.count(BY_LIST);
            self.split(client, node.id, route, by);
        }
        if known.is_some() && own.is_some() && differs {
            self.count(BY_ANOTHER_LIST);
        }
        if transient {
            self.count(ELSEWHERE);
        }
        if self.without_store.iter().any(|(replica, ..)| *replica == node.id) {
            self.count(WITHOUT_STORE);
        }
        // The answer has the epoch; some clients ask for the list, others are not due to.
        if client > 0 && differs && own.is_some() && self.dice.chance(500) {
            let split = self.replicas.get(&node.id).into_iter().flat_map(|view| &view.splits);
            let routes = split.flat_map(|(route, longer)| [route].into_iter().chain(longer));
            self.clients[client].splits.extend(routes);
            self.clients[client].list = own;
        }
        (node, RequestHint { transient, ..RequestHint::default() })
    }

    /// A replica is asked for a prompt by a route. If it has split the route, or does so now, its answer says so.
    fn split(&mut self, client: usize, replica: Replica, route: RouteKey, by: &RoutedBy) {
        let RoutedBy::Prompt(blocks) = by else { return };
        if RouteKey::of(blocks, |_| false) != Some(route) {
            self.count(BY_A_SPLIT);
        }
        let (is_crowded, longer) = (self.dice.chance(100), self.dice.below(3));
        let Some(view) = self.replicas.get_mut(&replica) else { return };
        let has_others = view.list.as_ref().is_some_and(|list| list.members.len() > 1);
        let was_split = view.splits.contains_key(&route);
        let is_split = has_others && (is_crowded || was_split);
        if !is_split {
            return;
        }
        let shared = view.splits.entry(route).or_insert_with(|| route.longer(blocks).take(longer).collect());
        self.clients[client].splits.insert(route);
        self.clients[client].splits.extend(shared.iter());
        if was_split {
            self.count(UNTOLD_SPLIT);
        }
    }

    /// The keeper of a route that a client with this list gets an answer from.
    fn keeper(
        &mut self,
        nodes: &Nodes,
        client: usize,
        list: &MembersResponse,
        route: &RouteKey,
    ) -> Option<Node> {
        let ranked = list.rank(route).into_iter().take(ROUTE_REPLICAS);
        let mut keepers: Vec<&Member> = ranked.filter_map(|at| list.members.get(at)).collect();
        let best = keepers.first().copied();
        let own = self.clients[client].zone.clone();
        keepers.sort_by_key(|member| own.is_some() && member.zone != own);
        if keepers.first().copied() != best {
            self.count(ZONE_FIRST);
        }
        let mut reached = Vec::new();
        for member in keepers {
            let answers = |node: &&Node| {
                let is_cut_off = self.without_clients.iter().any(|(replica, _)| *replica == node.id);
                url(node.id) == member.url && !node.life.is_over() && !is_cut_off
            };
            match nodes.iter().map(|(node, _)| node).find(answers) {
                Some(node) => reached.push(node.clone()),
                None => self.count(PASSED_OVER),
            }
        }
        // Now and then the first is late, and the second is asked.
        let nth = usize::from(reached.len() > 1 && self.dice.chance(100));
        (nth < reached.len()).then(|| reached.swap_remove(nth))
    }

    /// What a replica takes for its part of the work.
    fn work_share(&self, node: &Node) -> WorkShare {
        let Some(own) = self.own(node.id) else { return WorkShare::WHOLE };
        let Some(this) = place_in(own, node.id) else { return WorkShare::WHOLE };
        let members = own.members.iter().map(|member| (member.url.clone(), member.weight)).collect();
        WorkShare::of(members, this, node.reading() != JournalReading::Rows)
    }

    /// Now and then cuts one replica off for a while: from the store while clients reach it, or the other way round.
    fn part(&mut self, nodes: &Nodes) {
        if !self.dice.chance(300) {
            return;
        }
        let (node, _) = &nodes[self.dice.below(nodes.len())];
        let is_cut_off = self.without_clients.iter().any(|(id, _)| *id == node.id)
            || self.without_store.iter().any(|(id, ..)| *id == node.id);
        if is_cut_off {
            return;
        }
        let until = Instant::now() + Duration::from_secs(5 + self.dice.below(120) as u64);
        if self.dice.chance(500) {
            node.life.cut_off_from_store(true);
            self.without_store.push((node.id, node.life.clone(), until));
        } else {
            self.without_clients.push((node.id, until));
            self.count(WITHOUT_CLIENTS);
        }
    }

    /// Ends all partitions.
    pub(crate) fn heal(&mut self) {
        self.without_clients.clear();
        self.without_store.drain(..).for_each(|(_, life, _)| life.cut_off_from_store(false));
    }
}

impl World {
    /// Where a client sends a request of a route: without routes to `given`, whoever that is.
    pub(crate) fn ask(&mut self, given: Node, by: &RoutedBy) -> (Node, RequestHint) {
        match &mut self.cluster {
            Some(cluster) => cluster.ask(&self.nodes, given, by),
            None => (given, RequestHint::default()),
        }
    }

    /// The share of a replica by its own list of members; `None` without routes.
    pub(crate) fn listed_share(&self, node: &Node) -> Option<WorkShare> {
        self.cluster.as_ref().map(|cluster| cluster.work_share(node))
    }

    /// Cuts off a replica, perhaps.
    pub(crate) fn part(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            cluster.part(&self.nodes);
        }
    }
}
