//! How the replicas of a cluster divide the work of collecting and scrubbing.
//!
//! A *work unit* is the chunks of one model of a tenant whose `seq_hash` begins with one hex digit, and their tombstones.
//! Rendezvous hashing gives each unit one owner among the members, as it gives routes to replicas. Nothing is agreed
//! upon: replicas with different lists may both do a unit, or neither. Both is safe, because any number of collectors
//! may run at once; what was left out is done by the next pass. A member that is listed and does not run keeps no unit:
//! owners change every [`WORK_TURN_PASSES`] passes of all members, and for scrubs every [`SCRUB_TURN`]. Another lists
//! the whole store in its place.
//!
//! [`WORK_TURN_PASSES`]: crate::limits::WORK_TURN_PASSES
//! [`SCRUB_TURN`]: crate::limits::SCRUB_TURN

use std::{ops::Range, sync::Arc};

use futures::{StreamExt, stream};
use kvasir_store::StoreError;
use kvasir_types::{ModelId, Name, RouteKey, SeqHash};

use super::Lifecycle;
use crate::{limits, listing::Listing};

/// Number of hex digits: the units of a model.
const DIGITS: u8 = 16;

/// The part of the work that one replica does.
#[derive(Debug, Clone)]
pub struct WorkShare(Option<Division>);

#[derive(Debug, Clone)]
struct Division {
    /// URLs and weights.
    members: Vec<(String, f64)>,
    this: usize,
    known_tails: bool,
    /// Each turn has other owners.
    turn: u64,
}

impl WorkShare {
    /// All work: of a replica that knows of no others, or at an operator's request.
    pub const WHOLE: Self = Self(None);

    /// The share of `members[this]`; members are URLs with weights. `known_tails`: whether it also collects the tails that it
    /// knows in the units of others, who may not know them where an index has only the rows of its replica's own routes.
    pub fn of(members: Vec<(String, f64)>, this: usize, known_tails: bool) -> Self {
        let is_divided = members.len() > 1 && this < members.len();
        Self(is_divided.then_some(Division { members, this, known_tails, turn: 0 }))
    }

    /// The share of the pass with this number, of the passes of all members.
    pub(super) fn at_epoch(&self, n: u64) -> Self {
        let turn = |division: &Division| n / (division.members.len() as u64 * limits::WORK_TURN_PASSES);
        Self(self.0.as_ref().map(|division| Division { turn: turn(division), ..division.clone() }))
    }

    /// The share of a scrub that begins at `now_ms` of the store's time.
    pub(super) fn of_scrub_at(&self, now_ms: i64) -> Self {
        let turn = u64::try_from(now_ms).unwrap_or(0) / limits::SCRUB_TURN.as_millis() as u64;
        Self(self.0.as_ref().map(|division| Division { turn, ..division.clone() }))
    }

    /// A name of its units, the same one after a restart.
    pub(super) fn name(&self) -> String {
        let Some(Division { members, this, turn, .. }) = &self.0 else { return "all".to_owned() };
        blake3::hash(format!("{members:?} {this} {turn}").as_bytes()).to_hex().to_string()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.0.is_none()
    }

    /// Whether this replica also does the work outside of units: accounts, capacity, salts, journals, leftovers.
    pub fn keeps_accounts(&self) -> bool {
        self.rank_for_accounts() == 0
    }

    /// How many other members would have to be away for this replica to do the work outside of units.
    pub(super) fn rank_for_accounts(&self) -> u32 {
        let rank = self.0.as_ref().and_then(|division| {
            division.rank(&RouteKey::ACCOUNTS).into_iter().position(|member| member == division.this)
        });
        rank.map_or(0, |rank| u32::try_from(rank).unwrap_or(u32::MAX))
    }

    /// Whether it also collects the tails that this replica knows in the units of others.
    pub fn has_known_tails(&self) -> bool {
        self.0.as_ref().is_some_and(|division| division.known_tails)
    }

    /// The first digits of the hashes in this replica's units of a model.
    pub(super) fn units(&self, tenant: &Name, model_id: &ModelId) -> Units {
        let Some(division) = &self.0 else { return Units::ALL };
        let is_own = |digit: &u8| {
            let route = RouteKey::of_work_unit(tenant, model_id, *digit, division.turn);
            division.rank(&route).first() == Some(&division.this)
        };
        Units((0..DIGITS).filter(is_own).fold(0, |digits, digit| digits | 1 << digit))
    }
}

impl Division {
    fn rank(&self, route: &RouteKey) -> Vec<usize> {
        route.rank(self.members.iter().map(|(url, weight)| (url.as_str(), *weight)))
    }
}

/// A replica's units of one model: a set of hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Units(u16);

impl Units {
    pub(crate) const ALL: Self = Self(u16::MAX);

    pub(crate) fn contain(self, seq_hash: &SeqHash) -> bool {
        self.has(seq_hash.as_bytes().first().map_or(0, |byte| byte >> 4))
    }

    fn has(self, digit: u8) -> bool {
        self.0 >> digit & 1 == 1
    }

    /// Adjacent digits together: each run is one listing.
    pub(crate) fn runs(self) -> Vec<Range<u8>> {
        let mut runs: Vec<Range<u8>> = Vec::new();
        for digit in (0..DIGITS).filter(|digit| self.has(*digit)) {
            match runs.last_mut() {
                Some(last) if last.end == digit => last.end += 1,
                _ => runs.push(digit..digit + 1),
            }
        }
        runs
    }
}

impl Lifecycle {
    /// The models with chunks, as they were at most an hour ago: a replica has few units of each, and asks for all.
    pub(super) async fn models(&self) -> Result<Vec<(Name, ModelId)>, StoreError> {
        let mut all = Vec::new();
        for tenant in self.catalog.tenants().await? {
            let models = match self.models.get(&tenant) {
                Some(models) => models,
                None => {
                    let folder = self.bucket.layout().models_prefix(&tenant);
                    let models: Arc<[ModelId]> = self.bucket.folders(&folder, "listing models").await?.into();
                    // The next one may have been registered since.
                    if !models.is_empty() {
                        self.models.insert(tenant.clone(), Arc::clone(&models));
                    }
                    models
                }
            };
            all.extend(models.iter().map(|model_id| (tenant.clone(), *model_id)));
        }
        Ok(all)
    }

    /// The chunks and tombstones of a share's units: of each model one or more runs of chunks, then their tombstones.
    pub(super) fn list_units(
        &self,
        share: &WorkShare,
        models: &[(Name, ModelId)],
        operation: &'static str,
    ) -> Listing {
        let layout = self.bucket.layout();
        let mut runs = Vec::new();
        for (tenant, model_id) in models {
            let units = share.units(tenant, model_id).runs();
            for folder in [
                layout.model_chunks_prefix(tenant, model_id),
                layout.model_tombstones_prefix(tenant, model_id),
            ] {
                runs.extend(units.iter().map(|digits| (folder.clone(), digits.clone())));
            }
        }
        let bucket = Arc::clone(&self.bucket);
        let listed = move |(folder, digits)| bucket.list_hashes(&folder, digits, operation);
        stream::iter(runs).flat_map(listed).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(n: u64) -> (Name, ModelId) {
        ("t".parse().expect("a name"), ModelId::from(*blake3::hash(&n.to_le_bytes()).as_bytes()))
    }

    fn shares<const N: usize>() -> [WorkShare; N] {
        let members: Vec<_> = (0..N).map(|n| (format!("http://r{n}:7480"), 1.0)).collect();
        std::array::from_fn(|this| WorkShare::of(members.clone(), this, false))
    }

    #[test]
    fn every_unit_has_one_owner_and_all_do_about_the_same() {
        let shares = shares::<10>();
        let mut done = [0; 10];
        for n in 0..200 {
            let (tenant, model_id) = model(n);
            let units: Vec<Units> = shares.iter().map(|share| share.units(&tenant, &model_id)).collect();
            assert_eq!(units.iter().fold(0, |all, units| all | units.0), u16::MAX);
            assert_eq!(units.iter().map(|units| units.0.count_ones()).sum::<u32>(), u32::from(DIGITS));
            done.iter_mut().zip(units).for_each(|(done, units)| *done += units.0.count_ones());
        }
        assert!(done.iter().all(|done| (250..=400).contains(done)), "{done:?} of 320 each");
        assert_eq!(shares.iter().filter(|share| share.keeps_accounts()).count(), 1);
    }

    #[test]
    fn owners_change_with_the_turn_and_members_stand_in_for_each_other_in_one_order() {
        let shares = shares::<3>();
        let (tenant, model_id) = model(7);
        let owners = |n: u64| shares.each_ref().map(|share| share.at_epoch(n).units(&tenant, &model_id));
        let a_turn = 3 * limits::WORK_TURN_PASSES;
        assert_eq!(owners(0), owners(a_turn - 1));
        assert_ne!(owners(0), owners(a_turn));
        let mut owned = 0;
        for turn in 0..100 {
            let units = owners(turn * a_turn);
            assert_eq!(units.iter().fold(0, |all, units| all ^ units.0), u16::MAX, "each has one owner");
            owned += u32::from(units[0].0 & 1 == 1);
        }
        assert!((15..=55).contains(&owned), "{owned} of 100, a third of them expected");
        let mut ranks = shares.each_ref().map(WorkShare::rank_for_accounts);
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2]);
    }

    #[test]
    fn what_a_member_does_not_scrub_others_do_in_time() {
        let (shares, (tenant, model_id)) = (shares::<3>(), model(7));
        let month = i64::try_from(limits::SCRUB_TURN.as_millis()).expect("far below");
        let scrubbed = |n: i64| shares[0].of_scrub_at(n * month).units(&tenant, &model_id).0;
        assert_ne!(scrubbed(0), u16::MAX);
        assert_eq!((0..40).fold(0, |all, n| all | scrubbed(n)), u16::MAX);
    }

    #[test]
    fn one_replica_alone_or_one_that_is_no_member_does_everything() {
        let (tenant, model_id) = model(1);
        for share in [WorkShare::WHOLE, shares::<1>()[0].clone(), WorkShare::of(Vec::new(), 0, true)] {
            assert!(share.is_whole() && share.keeps_accounts() && !share.has_known_tails());
            assert_eq!(share.units(&tenant, &model_id), Units::ALL);
        }
    }

    #[test]
    fn adjacent_digits_are_listed_together() {
        assert!(Units::ALL.runs().iter().eq([&(0..16)]));
        assert_eq!(Units(0b1000_0000_0001_0110).runs(), [1..3, 4..5, 15..16]);
        assert_eq!(Units(0).runs(), []);
        let hash = SeqHash::from([0xa7; 32]);
        assert!(Units(1 << 10).contain(&hash) && !Units(!(1 << 10)).contain(&hash));
    }
}
