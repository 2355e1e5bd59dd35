//! Selects the replica that a request is sent to.
//!
//! A client is given one address. Where the service knows its replicas, the client asks for the list and sends the requests of a
//! prompt to the replicas that keep its route: the first, and the second where the first does not answer. Where it does not,
//! or none of them can be reached from here, all requests use the given address, as behind any load balancer.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use kvasir_api::{HEADER_ZONE, MembersResponse, ROUTE_REPLICAS, routes};
use kvasir_types::{Name, RouteKey, SeqHash};
use tokio::time::Instant;

use crate::limits::{
    MEMBER_PROBE_TIME_MAX, MEMBERS_ASKED_AGAIN, MEMBERS_ASKED_EVERY, SPLIT_KNOWN_FOR, SPLITS_KNOWN_MAX,
};

/// A base address, without a slash at its end.
pub(super) type Base = Arc<str>;

/// The members of the service, and what this client has learnt of them. Shared by all clones of a client.
#[derive(Debug)]
pub(crate) struct Members {
    /// The address that the client was given.
    given: Base,
    /// The zone that this client runs in.
    zone: Option<Name>,
    state: Mutex<MembersState>,
    is_refreshing: AtomicBool,
}

#[derive(Debug, Default)]
struct MembersState {
    list: Option<Arc<MembersResponse>>,
    /// When it was last asked for.
    asked_at: Option<Instant>,
    /// Members that are passed over, because they could not be reached or were never probed. All of them are being probed.
    away: HashSet<String>,
    /// Zones of members, by URL, that said so when they were probed: a list from DNS has none.
    zones: HashMap<String, Name>,
    splits: HashMap<RouteKey, Instant>,
}

/// Where the requests of one prompt go.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Each address once, best first; never empty. The given address is last, unless it is a keeper of the route itself.
    bases: Arc<[Base]>,
    /// The route of the prompt, which the service is told.
    pub(super) route: Option<RouteKey>,
}

impl Members {
    pub(super) fn new(given: &str, zone: Option<Name>) -> Self {
        Self { given: given.into(), zone, state: Mutex::default(), is_refreshing: AtomicBool::new(false) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut MembersState) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The address that requests are made out to before they are sent: the given one.
    pub(super) fn named_in_requests(&self) -> &str {
        &self.given
    }

    /// Where requests go that no prompt is known of.
    pub(super) fn given(&self) -> Target {
        Target { bases: [Arc::clone(&self.given)].into(), route: None }
    }

    /// Where the requests of a prompt go.
    pub(super) fn target(&self, blocks: &[SeqHash]) -> Target {
        let now = Instant::now();
        let route = self.with(|state| {
            let is_split = |key: &RouteKey| state.splits.get(key).is_some_and(|until| *until > now);
            RouteKey::of(blocks, is_split)
        });
        route.map_or_else(|| self.given(), |route| self.target_of(route))
    }

    /// Where the requests of a route go.
    pub(super) fn target_of(&self, route: RouteKey) -> Target {
        self.with(|state| {
            let Some(list) = &state.list else { return self.given() };
            let ranked = list.rank(&route).into_iter().take(ROUTE_REPLICAS);
            let mut keepers: Vec<_> = ranked.filter_map(|at| list.members.get(at)).collect();
            keepers.sort_by_key(|member| {
                let zone = member.zone.as_ref().or_else(|| state.zones.get(&member.url));
                self.zone.is_some() && zone != self.zone.as_ref()
            });
            let mut bases: Vec<_> =
                keepers.into_iter().map(|member| Base::from(member.url.as_str())).collect();
            if !bases.contains(&self.given) {
                bases.push(Arc::clone(&self.given));
            }
            Target { bases: bases.into(), route: Some(route) }
        })
    }

    /// The addresses of a target in the order to try them, beginning `first` places behind the best one. Those that are passed over
    /// come last, and are never the first while there are others.
    pub(super) fn order(&self, target: &Target, first: usize) -> Vec<Base> {
        let (mut bases, away): (Vec<_>, Vec<_>) =
            self.with(|state| target.bases.iter().cloned().partition(|base| !state.away.contains(&**base)));
        let first = first.checked_rem(bases.len()).unwrap_or_default();
        bases.rotate_left(first);
        bases.extend(away);
        bases
    }

    /// Whether a target has more than one address that is not passed over.
    pub(super) fn has_a_second(&self, target: &Target) -> bool {
        self.with(|state| target.bases.iter().filter(|base| !state.away.contains(&***base)).count() > 1)
    }

    /// A replica answered.
    pub(super) fn on_answer(&self, base: &Base) {
        self.with(|state| state.away.remove(&**base));
    }

    /// A replica could not be reached or did not answer: it is passed over until it answers a probe. Returns whether the caller
    /// has to begin to probe it.
    pub(super) fn on_unreachable(&self, base: &Base) -> bool {
        self.with(|state| {
            let is_member =
                state.list.as_ref().is_some_and(|list| list.members.iter().any(|of| of.url == **base));
            is_member && state.away.insert(base.to_string())
        })
    }

    /// Asks a replica whether it is ready, without a credential.
    pub(super) async fn probe(&self, http: &reqwest::Client, base: &Base) -> bool {
        let request = http.get(format!("{base}{}", routes::READYZ)).timeout(MEMBER_PROBE_TIME_MAX);
        let answer = request.send().await.ok().filter(|answer| answer.status().is_success());
        let is_ready = answer.is_some();
        if let Some(answer) = answer {
            let zone = answer.headers().get(HEADER_ZONE).and_then(|zone| zone.to_str().ok()?.parse().ok());
            self.on_probed(base, zone);
        }
        is_ready
    }

    /// A replica answered a probe, with its zone if it knows that.
    fn on_probed(&self, base: &Base, zone: Option<Name>) {
        self.with(|state| {
            let is_listed =
                state.list.as_ref().is_some_and(|list| list.members.iter().any(|of| of.url == **base));
            match zone.filter(|_| is_listed) {
                Some(zone) => state.zones.insert(base.to_string(), zone),
                None => state.zones.remove(&**base),
            };
        });
        self.on_answer(base);
    }

    /// Whether a replica is passed over.
    pub(super) fn is_away(&self, base: &Base) -> bool {
        self.with(|state| state.away.contains(&**base))
    }

    /// The replica that keeps a route says that too many prompts share it: the next ones go by the next 256 tokens.
    pub(super) fn on_split(&self, route: RouteKey) {
        let now = Instant::now();
        self.with(|state| {
            if state.splits.len() >= SPLITS_KNOWN_MAX {
                state.splits.retain(|_, until| *until > now);
            }
            if state.splits.len() < SPLITS_KNOWN_MAX {
                state.splits.insert(route, now + SPLIT_KNOWN_FOR);
            }
        });
    }

    /// Whether the list in use is that of `epoch`.
    pub(super) fn has(&self, epoch: &str) -> bool {
        self.with(|state| state.list.as_ref().is_some_and(|list| list.epoch == epoch))
    }

    /// Whether the service said that it has no members, or did not answer, so long ago that the caller has to ask again.
    pub(super) fn asks_again(&self) -> bool {
        self.with(|state| {
            state.list.is_none() && state.asked_at.is_some_and(|asked| asked.elapsed() >= MEMBERS_ASKED_AGAIN)
        })
    }

    /// Whether the caller has to ask for the list: a replica has the list of `epoch`, and no caller has asked yet.
    pub(super) fn begin_refresh(&self, epoch: Option<&str>) -> Option<Refreshing<'_>> {
        let is_current = match epoch {
            Some(epoch) => self.has(epoch),
            None => self.with(|state| state.list.is_some()),
        };
        if is_current || self.is_refreshing.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (refreshing, now) = (Refreshing(self), Instant::now());
        // Replicas with different lists must not make every answer a question.
        let may_ask = self.with(|state| {
            let is_due = state.asked_at.is_none_or(|asked| now - asked >= MEMBERS_ASKED_EVERY);
            if is_due {
                state.asked_at = Some(now);
            }
            is_due
        });
        may_ask.then_some(refreshing)
    }
}

/// Somebody asks for the list; ends when it is dropped.
#[derive(Debug)]
pub(super) struct Refreshing<'a>(&'a Members);

impl Refreshing<'_> {
    /// Takes the list over. A service that knows no members has none in it, and what is not reached by TLS where the given
    /// address is, would be sent the credential in the clear. Returns the new members, which the caller has to probe.
    pub(super) fn take(self, mut list: MembersResponse) -> Vec<Base> {
        let now = Instant::now();
        let is_tls = self.0.given.starts_with("https:");
        list.members.retain(|member| !is_tls || member.url.starts_with("https:"));
        self.0.with(|state| {
            let is_listed = |url: &str| list.members.iter().any(|member| member.url == url);
            state.away.retain(|url| is_listed(url));
            state.zones.retain(|url, _| is_listed(url));
            let is_known = |url: &str| {
                url == &*self.0.given
                    || state.list.iter().flat_map(|list| &list.members).any(|member| member.url == url)
            };
            let new: Vec<Base> = list
                .members
                .iter()
                .filter(|of| !is_known(&of.url))
                .map(|of| of.url.as_str().into())
                .collect();
            state.away.extend(new.iter().map(|url| url.to_string()));
            for split in list.splits.iter().take(SPLITS_KNOWN_MAX) {
                state.splits.insert(*split, now + SPLIT_KNOWN_FOR);
            }
            state.list = (!list.members.is_empty()).then(|| Arc::new(list));
            new
        })
    }
}

impl Drop for Refreshing<'_> {
    fn drop(&mut self) {
        self.0.is_refreshing.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use kvasir_api::Member;
    use kvasir_types::{RootHash, TokenChain};

    use super::*;

    const GIVEN: &str = "http://lb:7480";

    fn list(epoch: &str, members: &[(&str, Option<&str>)]) -> MembersResponse {
        let member = |(url, zone): &(&str, Option<&str>)| Member {
            url: (*url).to_owned(),
            zone: zone.map(|zone| zone.parse().expect("a name")),
            weight: 1.0,
        };
        MembersResponse {
            epoch: epoch.to_owned(),
            members: members.iter().map(member).collect(),
            this: None,
            splits: Vec::new(),
        }
    }

    fn knowing(given: &str, zone: Option<&str>, list: MembersResponse) -> Members {
        let members = Members::new(given, zone.map(|zone| zone.parse().expect("a name")));
        for new in members.begin_refresh(None).expect("nothing is known").take(list) {
            members.on_answer(&new);
        }
        members
    }

    fn prompt() -> TokenChain {
        TokenChain::new(RootHash::from([7; 32]), &(0..512).collect::<Vec<_>>())
    }

    fn order(members: &Members, target: &Target) -> Vec<String> {
        members.order(target, 0).iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn a_replica_that_is_away_comes_last_until_it_answers() {
        let urls = [("http://a:1", None), ("http://b:1", None), ("http://c:1", None)];
        let members = knowing(GIVEN, None, list("1", &urls));
        let target = members.target(prompt().blocks());
        let at_first = order(&members, &target);
        assert_eq!(
            (at_first.len(), at_first[2].as_str()),
            (3, GIVEN),
            "the given address is the last resort"
        );
        let first: Base = at_first[0].as_str().into();
        assert!(members.on_unreachable(&first) && !members.on_unreachable(&first), "it is probed once");
        assert_eq!(order(&members, &target), [&*at_first[1], GIVEN, &*at_first[0]]);
        let second = members.order(&target, 1);
        assert_eq!(second, [GIVEN.into(), at_first[1].as_str().into(), Base::clone(&first)]);
        members.on_answer(&first);
        assert_eq!(order(&members, &target), at_first);
        assert!(!members.on_unreachable(&GIVEN.into()), "there is nothing behind the given address");
        assert!(!members.on_unreachable(&"http://gone:1".into()), "it left the list while a request ran");
        assert_eq!(order(&members, &target), at_first);
    }

    #[test]
    fn a_given_address_that_is_a_replica_is_one_of_them() {
        let members = knowing("http://a:1", None, list("1", &[("http://a:1", None), ("http://b:1", None)]));
        let target = members.target(prompt().blocks());
        let at_first = order(&members, &target);
        assert_eq!(at_first.len(), 2, "each address once");
        assert!(members.on_unreachable(&at_first[0].as_str().into()));
        assert_eq!(order(&members, &target), [&*at_first[1], &*at_first[0]]);
        assert!(members.on_unreachable(&at_first[1].as_str().into()), "either of them is passed over");
        assert_eq!(order(&members, &target), at_first);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_without_members_is_asked_again() {
        let members = Members::new(GIVEN, None);
        assert!(!members.asks_again(), "nobody needs them yet");
        members.begin_refresh(None).expect("nothing is known").take(list("", &[]));
        assert!(!members.asks_again());
        tokio::time::advance(MEMBERS_ASKED_AGAIN).await;
        assert!(members.asks_again());
        drop(members.begin_refresh(None).expect("it is time, and the service does not answer"));
        assert!(!members.asks_again());
        tokio::time::advance(MEMBERS_ASKED_AGAIN).await;
        members.begin_refresh(None).expect("it is time").take(list("1", &[("http://a:1", None)]));
        tokio::time::advance(MEMBERS_ASKED_AGAIN).await;
        assert!(!members.asks_again());
    }

    #[tokio::test]
    async fn a_replica_is_used_once_it_has_answered() {
        let members = Members::new(GIVEN, None);
        let refresh =
            |epoch, urls: &[_]| members.begin_refresh(Some(epoch)).expect("news").take(list(epoch, urls));
        let new = refresh("1", &[("http://a:1", None)]);
        assert_eq!(new, ["http://a:1".into()]);
        let target = members.target(prompt().blocks());
        assert_eq!(order(&members, &target), [GIVEN, "http://a:1"]);
        members.on_answer(&new[0]);
        assert_eq!(order(&members, &target), ["http://a:1", GIVEN]);
    }

    #[tokio::test(start_paused = true)]
    async fn two_lists_in_use_cost_a_question_a_second() {
        let members = knowing(GIVEN, None, list("1", &[("http://a:1", None)]));
        assert!(members.has("1") && members.begin_refresh(Some("1")).is_none());
        let mut questions = 0;
        for n in 0..100 {
            tokio::time::advance(MEMBERS_ASKED_EVERY / 10).await;
            if let Some(refreshing) = members.begin_refresh(Some(&format!("other {n}"))) {
                refreshing.take(list("1", &[("http://a:1", None)]));
                questions += 1;
            }
        }
        assert_eq!(questions, 10);
    }

    #[test]
    fn a_credential_is_not_sent_in_the_clear_where_the_given_address_has_tls() {
        let urls = [("http://a:1", None), ("https://b:1", None)];
        let members = knowing("https://lb", None, list("1", &urls));
        assert_eq!(order(&members, &members.target(prompt().blocks())), ["https://b:1", "https://lb"]);
    }

    #[test]
    fn a_replica_of_the_same_zone_comes_first_and_without_a_list_there_is_no_route() {
        let urls = [("http://a:1", Some("x")), ("http://b:1", Some("y"))];
        for (zone, first) in [("x", "http://a:1"), ("y", "http://b:1")] {
            let members = knowing(GIVEN, Some(zone), list("1", &urls));
            assert_eq!(order(&members, &members.target(prompt().blocks()))[0], first);
        }
        // A list from DNS has no zones; replicas say theirs when they are probed.
        let members = knowing(GIVEN, Some("y"), list("1", &[("http://a:1", None), ("http://b:1", None)]));
        let target = || order(&members, &members.target(prompt().blocks()));
        let by_rank = target();
        members.on_probed(&by_rank[1].as_str().into(), Some("y".parse().expect("a name")));
        assert_eq!(target(), [&*by_rank[1], &*by_rank[0], GIVEN]);
        members.on_probed(&by_rank[1].as_str().into(), None);
        assert_eq!(target(), by_rank);
        let unknown = knowing(GIVEN, None, list("1", &[]));
        let target = unknown.target(prompt().blocks());
        assert_eq!((target.route, order(&unknown, &target)), (None, vec![GIVEN.to_owned()]));
    }
}
