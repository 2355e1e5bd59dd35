//! The replicas that share the bucket, and the routes that this one keeps.
//!
//! Nothing is agreed upon: each replica has the list that its configuration or DNS gives it, and every replica answers every
//! request. A list that is out of date costs hits, never answers.

mod member_source;
mod splits;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use hickory_resolver::TokioResolver;
use kvasir_api::{Member, MembersResponse, ROUTE_REPLICAS};
use kvasir_storage::WorkShare;
use kvasir_types::{Name, RouteKey, SeqHash};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

pub use self::member_source::MemberSource;
pub(crate) use self::member_source::canonical_url;
use self::splits::Splits;
use crate::limits;

/// Who the members are.
#[derive(Debug, Clone, Default)]
pub struct ClusterConfig {
    /// Where the list comes from; none: this replica knows of no others.
    pub members: Option<MemberSource>,
    /// Where clients reach this replica, as it stands in the list.
    pub advertise: Option<String>,
    /// The zone that this replica runs in.
    pub zone: Option<Name>,
}

impl ClusterConfig {
    /// The URL of this replica, where the list is given and does not have it.
    pub(crate) fn stranger(&self) -> Option<&str> {
        let (Some(MemberSource::Fixed(members)), Some(this)) = (&self.members, &self.advertise) else {
            return None;
        };
        (!members.iter().any(|member| is_named(&member.url, this))).then_some(this)
    }
}

/// Where this replica stands among those that keep a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoutePlace {
    First,
    Second,
    /// Others keep it.
    Other,
    /// This replica has no list, or is not in it.
    Unknown,
}

impl RoutePlace {
    pub(crate) const ALL: [Self; 4] = [Self::First, Self::Second, Self::Other, Self::Unknown];

    /// Label of metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Second => "second",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }
}

/// The members as this replica knows them now.
#[derive(Debug)]
pub(crate) struct Cluster {
    config: ClusterConfig,
    /// Of members' URLs that DNS gives.
    scheme: &'static str,
    current: RwLock<Arc<MemberList>>,
    splits: Splits,
    moved: Mutex<f64>,
    begun: Instant,
    was_large: AtomicBool,
}

#[derive(Debug)]
struct MemberList {
    epoch: String,
    members: Vec<Member>,
}

impl MemberList {
    fn new(mut members: Vec<Member>) -> Self {
        members.sort_by(|a, b| a.url.cmp(&b.url));
        members.dedup_by(|a, b| a.url == b.url);
        members.truncate(limits::MEMBERS_MAX);
        Self { epoch: MembersResponse::epoch_of(&members), members }
    }

    /// The share of all routes whose first replica is another one in `next`. By rendezvous hashing a member is the first of a
    /// route in both lists with the probability 1 / Σ over all members of the larger of two ratios of weights: the other's over
    /// the member's in this list, and in `next`.
    fn moved(&self, next: &Self) -> f64 {
        let mut weights = BTreeMap::<&str, [f64; 2]>::new();
        for (at, list) in [self, next].into_iter().enumerate() {
            for member in &list.members {
                weights.entry(&member.url).or_default()[at] = member.weight;
            }
        }
        if weights.is_empty() {
            return 0.0;
        }
        let ratios =
            |before: f64, after: f64| weights.values().map(move |[b, a]| (b / before).max(a / after));
        let in_both = weights.values().filter(|[before, after]| *before > 0.0 && *after > 0.0);
        1.0 - in_both.map(|[before, after]| 1.0 / ratios(*before, *after).sum::<f64>()).sum::<f64>()
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new(ClusterConfig::default(), false)
    }
}

impl Cluster {
    /// Members that DNS gives are reached with TLS, or without.
    pub(crate) fn new(config: ClusterConfig, has_tls: bool) -> Self {
        let members = match &config.members {
            Some(MemberSource::Fixed(members)) => members.clone(),
            Some(MemberSource::Srv { .. }) | None => Vec::new(),
        };
        let (scheme, current) = (if has_tls { "https" } else { "http" }, Arc::new(MemberList::new(members)));
        Self {
            config,
            scheme,
            current: RwLock::new(current),
            splits: Splits::default(),
            moved: Mutex::default(),
            begun: Instant::now(),
            was_large: AtomicBool::new(false),
        }
    }

    fn current(&self) -> Arc<MemberList> {
        Arc::clone(&self.current.read())
    }

    /// How many members there are.
    pub(crate) fn len(&self) -> usize {
        self.current().members.len()
    }

    /// Which of the members this replica is.
    fn this(&self, list: &MemberList) -> Option<usize> {
        let this = self.config.advertise.as_ref()?;
        list.members.iter().position(|member| is_named(&member.url, this))
    }

    /// The zone that this replica runs in: the configured one, or that of the list.
    pub(crate) fn zone(&self) -> Option<Name> {
        let current = self.current();
        let listed = || current.members.get(self.this(&current)?)?.zone.clone();
        self.config.zone.clone().or_else(listed)
    }

    /// The epoch of the list; none where there is no list.
    pub(crate) fn epoch(&self) -> Option<String> {
        let current = self.current();
        (!current.members.is_empty()).then(|| current.epoch.clone())
    }

    /// What this replica tells a caller of a tenant.
    pub(crate) fn describe(&self, tenant: &Name) -> MembersResponse {
        let current = self.current();
        let this = self.this(&current).and_then(|this| current.members.get(this));
        MembersResponse {
            epoch: current.epoch.clone(),
            members: current.members.clone(),
            this: this.map(|member| member.url.clone()),
            splits: self.splits.of_tenant(tenant),
        }
    }

    /// Where this replica stands among those that keep `route`.
    pub(crate) fn place(&self, route: &RouteKey) -> RoutePlace {
        let current = self.current();
        let Some(this) = self.this(&current) else { return RoutePlace::Unknown };
        let members = current.members.iter().map(|member| (member.url.as_str(), member.weight));
        match route.rank(members).iter().position(|member| *member == this) {
            Some(0) => RoutePlace::First,
            Some(rank) if rank < ROUTE_REPLICAS => RoutePlace::Second,
            _ => RoutePlace::Other,
        }
    }

    /// Whether there are so many members that each has rows of its own part alone; once so, until there are half of that: a member
    /// that restarts changes nothing. So it is taken for while DNS was not asked yet.
    pub(crate) fn is_large(&self) -> bool {
        let members = self.len();
        if members == 0 {
            return self.is_resolved() && self.begun.elapsed() < limits::MEMBERS_KNOWN_WITHIN;
        }
        let most = limits::JOURNAL_ROWS_MEMBERS_MAX;
        let is_large = members > most || (members > most / 2 && self.was_large.load(Ordering::Relaxed));
        self.was_large.store(is_large, Ordering::Relaxed);
        is_large
    }

    /// Whether this replica keeps the accounts of tenants for the others. Two may think so for a while.
    pub(crate) fn keeps_accounts(&self) -> bool {
        self.place(&RouteKey::ACCOUNTS) == RoutePlace::First
    }

    /// The part of collecting and scrubbing that this replica does: everything, unless it knows of others and is one of
    /// the members. `known_tails`: in a large cluster also the tails that it knows in the units of others.
    pub(crate) fn work_share(&self, known_tails: bool) -> WorkShare {
        let current = self.current();
        let Some(this) = self.this(&current) else { return WorkShare::WHOLE };
        let members = current.members.iter().map(|member| (member.url.clone(), member.weight));
        WorkShare::of(members.collect(), this, known_tails && self.is_large())
    }

    /// Takes note of a lookup; gives its route and longer ones if they are split, so that the caller's next lookups go by the
    /// first one that is not.
    pub(crate) fn note_lookup(&self, tenant: &Name, route: RouteKey, blocks: &[SeqHash]) -> Vec<RouteKey> {
        if self.len() > 1 { self.splits.note(tenant, route, blocks) } else { Vec::new() }
    }

    /// Routes that were split so far.
    pub(crate) fn splits_made(&self) -> u64 {
        self.splits.made()
    }

    /// The share of all routes that moved with changes of the list so far: 1 for as many as there are.
    pub(crate) fn routes_moved(&self) -> f64 {
        *self.moved.lock()
    }

    /// Whether the list has to be asked for again and again.
    pub(crate) fn is_resolved(&self) -> bool {
        matches!(self.config.members, Some(MemberSource::Srv { .. }))
    }

    /// Asks DNS for the list. Where it does not answer or has no member, the list stays.
    pub(crate) async fn resolve(&self, resolver: &TokioResolver) -> Result<(), String> {
        let Some(MemberSource::Srv { name }) = &self.config.members else { return Ok(()) };
        let list = MemberList::new(member_source::resolve(name, resolver, self.scheme).await?);
        let before = self.current();
        if before.epoch != list.epoch {
            tracing::info!(
                members = list.members.len(),
                epoch = list.epoch,
                "the members of the cluster changed"
            );
            // The first list moves nothing.
            if !before.members.is_empty() {
                *self.moved.lock() += before.moved(&list);
            }
            *self.current.write() = Arc::new(list);
        }
        Ok(())
    }
}

/// Whether `name` is the URL of a member, or the same with the first labels of its host alone: a pod knows its own name, and DNS
/// gives it with the domain of the cluster.
fn is_named(member: &str, name: &str) -> bool {
    let (Some((host, port)), Some((name, named_port))) = (member.rsplit_once(':'), name.rsplit_once(':'))
    else {
        return false;
    };
    port == named_port && host.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(list: &str, advertise: Option<&str>) -> Cluster {
        let members = Some(MemberSource::parse(list).expect("a list"));
        let advertise = advertise.map(str::to_owned);
        Cluster::new(ClusterConfig { members, advertise, zone: None }, false)
    }

    fn key(n: u64) -> RouteKey {
        format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).parse().expect("16 digits")
    }

    #[test]
    fn each_route_has_one_first_and_one_second_replica_and_all_agree() {
        let urls = ["http://a:7480", "http://b:7480", "http://c:7480"];
        let replicas = urls.map(|url| cluster("http://c:7480,http://a:7480,http://b:7480", Some(url)));
        for n in 0..100 {
            let places = replicas.each_ref().map(|replica| replica.place(&key(n)));
            let count = |place| places.iter().filter(|of| **of == place).count();
            assert_eq!(
                (count(RoutePlace::First), count(RoutePlace::Second), count(RoutePlace::Other)),
                (1, 1, 1)
            );
        }
        assert_eq!(replicas[0].epoch(), replicas[2].epoch());
        let keeping = replicas.each_ref().map(|replica| replica.work_share(false).keeps_accounts());
        assert_eq!(keeping, replicas.each_ref().map(Cluster::keeps_accounts));
        assert_eq!(keeping.iter().filter(|keeps| **keeps).count(), 1);
        assert!(
            cluster("http://a:7480", Some("http://z:7480")).work_share(false).keeps_accounts(),
            "it does all work"
        );
        assert_eq!(cluster("http://a:7480", None).place(&key(1)), RoutePlace::Unknown);
        assert_eq!(cluster("http://a:7480", Some("http://z:7480")).place(&key(1)), RoutePlace::Unknown);
        let alone = Cluster::default();
        assert_eq!((alone.epoch(), alone.len()), (None, 0));
    }

    #[test]
    fn a_member_that_restarts_makes_no_large_cluster_small() {
        let replica = cluster("http://a:7480", None);
        let becomes = |members: usize| {
            let list = (0..members).map(|n| format!("http://r{n}:7480")).collect::<Vec<_>>().join(",");
            let Ok(MemberSource::Fixed(members)) = MemberSource::parse(&list) else { panic!("a list") };
            *replica.current.write() = Arc::new(MemberList::new(members));
            replica.is_large()
        };
        assert_eq!([8, 9, 8, 5, 4, 8, 9].map(becomes), [false, true, true, true, false, false, true]);
    }

    /// Compared with the first replicas of routes.
    #[test]
    fn what_moves_is_what_members_that_left_had_and_new_ones_take() {
        let list = |text: &str| MemberList::new(cluster(text, None).current().members.clone());
        let (abc, bcd) =
            ("http://a:1,http://b:1,http://c:1?weight=2", "http://b:1,http://c:1?weight=2,http://d:1");
        for (before, after, share) in [
            (abc, abc, 0.0),
            (abc, "http://a:1,http://b:1", 0.5),
            ("http://a:1,http://b:1", abc, 0.5),
            (abc, bcd, 0.4),
            (abc, "http://d:1", 1.0),
            ("http://a:1,http://b:1", "http://a:1,http://b:1?weight=3", 0.25),
        ] {
            let (before, after) = (list(before), list(after));
            let first = |list: &MemberList, route: RouteKey| {
                let members = list.members.iter().map(|member| (member.url.as_str(), member.weight));
                list.members[route.rank(members)[0]].url.clone()
            };
            let moved = (0..10_000).filter(|n| first(&before, key(*n)) != first(&after, key(*n))).count();
            assert!(
                (before.moved(&after) - share).abs() < 1e-9,
                "{} instead of {share}",
                before.moved(&after)
            );
            // Five standard deviations are 0.025.
            assert!((moved as f64 / 10_000.0 - share).abs() < 0.025, "{moved} of 10,000, {share} expected");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn until_dns_was_asked_a_cluster_may_be_large() {
        let members = Some(MemberSource::parse("dns+srv://x").expect("a name"));
        let unknown = Cluster::new(ClusterConfig { members, ..ClusterConfig::default() }, false);
        assert!(unknown.is_large() && !Cluster::default().is_large());
        tokio::time::advance(limits::MEMBERS_KNOWN_WITHIN).await;
        assert!(!unknown.is_large());
    }

    #[test]
    fn a_pod_knows_itself_by_the_first_labels_of_its_name() {
        let member = "http://kvasir-0.headless.ns.svc.cluster.local:7480";
        assert!(is_named(member, "http://kvasir-0.headless:7480") && is_named(member, member));
        for other in [
            "http://kvasir-0.head:7480",
            "https://kvasir-0.headless:7480",
            "http://kvasir-0.headless:80",
            "http://kvasir-1.headless:7480",
        ] {
            assert!(!is_named(member, other), "{other}");
        }
    }

    #[test]
    fn a_replica_knows_its_zone_by_its_own_setting_or_by_the_list() {
        let list = "http://a:7480?zone=x,http://b:7480";
        let zone = |this| cluster(list, Some(this)).zone().map(|zone| zone.to_string());
        assert_eq!((zone("http://a:7480").as_deref(), zone("http://b:7480")), (Some("x"), None));
        let mut told = cluster(list, Some("http://a:7480"));
        told.config.zone = Some("y".parse().expect("a name"));
        assert_eq!(told.zone().as_ref().map(Name::as_str), Some("y"));
    }

    #[test]
    fn one_replica_alone_splits_nothing() {
        let tenant: Name = "t".parse().expect("a name");
        let alone = cluster("http://a:7480", Some("http://a:7480"));
        let prompt = |n: u32| [SeqHash::from(*blake3::hash(&n.to_le_bytes()).as_bytes())];
        assert!((0..10_000).all(|n| alone.note_lookup(&tenant, key(1), &prompt(n)).is_empty()));
        let two = cluster("http://a:7480,http://b:7480", Some("http://a:7480"));
        assert!((0..10_000).any(|n| two.note_lookup(&tenant, key(1), &prompt(n)) == [key(1)]));
        assert_eq!(two.describe(&tenant).splits, [key(1)]);
        assert_eq!(two.describe(&"other".parse().expect("a name")).splits, []);
    }
}
