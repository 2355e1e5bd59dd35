//! The eviction order of a tier that tenants share: one policy per tenant, so that no tenant can push another below its equal part.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{Access, EntryKey, EvictionPolicy, Moment, PolicyKind, limits};

/// A tenant's number in the tier; tenants beyond [`limits::TENANTS_MAX`] share the last.
pub type TenantIndex = u16;

/// The entries of a tier by tenant, and the order in which they are evicted.
#[derive(Debug)]
pub struct EvictionIndex<K> {
    kind: PolicyKind,
    capacity: u64,
    tenant_share_max: f64,
    tenants: Vec<Box<dyn EvictionPolicy<K>>>,
    /// [`narrow`](Self::narrow) walks over it, so its seed is fixed: equal calls give equal victims.
    owner: HashMap<K, TenantIndex, FixedState>,
    bytes: u64,
}

impl<K: EntryKey> EvictionIndex<K> {
    /// A tier of `capacity` bytes, of which one tenant may hold the share `tenant_share_max`.
    pub fn new(kind: PolicyKind, capacity: u64, tenant_share_max: f64) -> Self {
        Self { kind, capacity, tenant_share_max, tenants: Vec::new(), owner: HashMap::default(), bytes: 0 }
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of one tenant's entries.
    pub fn bytes_of(&self, tenant: TenantIndex) -> u64 {
        self.tenants.get(usize::from(tenant)).map_or(0, |policy| policy.bytes())
    }

    /// Entries of all tenants.
    pub fn len(&self) -> usize {
        self.owner.len()
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.owner.is_empty()
    }

    /// The bytes that one tenant may hold.
    fn quota(&self) -> u64 {
        (self.capacity as f64 * self.tenant_share_max.clamp(0.0, 1.0)) as u64
    }

    /// Forgets the entries that are not to be kept, and has another capacity from the next [`insert`](Self::insert) on.
    pub(super) fn narrow(&mut self, capacity: u64, keep: impl Fn(&K) -> bool) {
        self.capacity = capacity;
        let gone: Vec<K> = self.owner.keys().filter(|key| !keep(key)).copied().collect();
        for key in gone {
            self.remove(&key);
        }
    }

    /// Whether the entry is present.
    pub fn contains(&self, key: &K) -> bool {
        self.owner.contains_key(key)
    }

    /// Records a use of a present entry.
    pub fn touch(&mut self, key: &K, access: &Access<K>) {
        if let Some(tenant) = self.owner.get(key) {
            self.tenants[usize::from(*tenant)].touch(key, access);
        }
    }

    /// Admits an entry and returns the victims evicted for it; the entry itself if it is worth less than all
    /// others.
    pub fn insert(&mut self, tenant: TenantIndex, key: K, access: &Access<K>) -> Vec<K> {
        self.remove(&key);
        if access.bytes > self.quota() {
            return vec![key];
        }
        while self.tenants.len() <= usize::from(tenant) {
            self.tenants.push(self.kind.build());
        }
        self.tenants[usize::from(tenant)].insert(key, access);
        self.owner.insert(key, tenant);
        self.bytes += access.bytes;
        let mut victims = Vec::new();
        while self.tenants[usize::from(tenant)].bytes() > self.quota() {
            let Some(victim) = self.evict_of(tenant, access.now) else { break };
            victims.push(victim);
        }
        while self.bytes > self.capacity {
            let Some(victim) = self.evict(access.now) else { break };
            victims.push(victim);
        }
        victims
    }

    /// Evicts from the tenant that holds most: it holds at least an equal share, whichever tenant needs room.
    fn evict(&mut self, now: Moment) -> Option<K> {
        let largest = (0..self.tenants.len()).max_by_key(|tenant| self.tenants[*tenant].bytes())?;
        self.evict_of(largest as TenantIndex, now)
    }

    fn evict_of(&mut self, tenant: TenantIndex, now: Moment) -> Option<K> {
        let policy = &mut self.tenants[usize::from(tenant)];
        let before = policy.bytes();
        let victim = policy.evict(now)?;
        self.bytes -= before - policy.bytes();
        self.owner.remove(&victim);
        Some(victim)
    }

    /// Removes an entry; `false` if it is not present.
    pub fn remove(&mut self, key: &K) -> bool {
        let Some(tenant) = self.owner.remove(key) else { return false };
        let policy = &mut self.tenants[usize::from(tenant)];
        let before = policy.bytes();
        policy.remove(key);
        self.bytes -= before - policy.bytes();
        true
    }
}

/// Numbers tenants in the order of their first use.
#[derive(Debug, Default)]
pub struct TenantNumbers(HashMap<String, TenantIndex>);

impl TenantNumbers {
    /// The number of a tenant.
    pub fn number(&mut self, tenant: &str) -> TenantIndex {
        if let Some(number) = self.0.get(tenant) {
            return *number;
        }
        let number = self.0.len().min(limits::TENANTS_MAX - 1) as TenantIndex;
        if self.0.len() < limits::TENANTS_MAX {
            self.0.insert(tenant.to_owned(), number);
        }
        number
    }

    /// The tenants that have a number, in no order. Those beyond the limit count with the one that got the last.
    pub fn iter(&self) -> impl Iterator<Item = (&str, TenantIndex)> {
        self.0.iter().map(|(tenant, number)| (tenant.as_str(), *number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClassId;

    fn key(tenant: u8, entry: u32) -> (u8, u32) {
        (tenant, entry)
    }

    fn access(bytes: u64, frame: u32) -> Access<(u8, u32)> {
        Access::new(Moment::from_millis(u64::from(frame)), ClassId::OTHER).bytes(bytes)
    }

    #[test]
    fn no_tenant_falls_below_its_equal_part() {
        for kind in PolicyKind::ALL {
            let mut index = EvictionIndex::new(kind, 1_000, 1.0);
            (0..4).for_each(|frame| drop(index.insert(0, key(0, frame), &access(100, frame))));
            // A flood: used again and again, so that any policy likes it better.
            for frame in 0..1_000 {
                index.insert(1, key(1, frame), &access(100, 10 + frame));
                index.touch(&key(1, frame), &access(100, 11 + frame));
                assert!(index.bytes() <= 1_000, "{kind}");
            }
            let kept = (0..4).filter(|frame| index.contains(&key(0, *frame))).count();
            assert_eq!(kept, 4, "{kind}: 400 bytes are less than half of the tier");
            // A third tenant arrives and gets its share from the two.
            (0..10).for_each(|frame| drop(index.insert(2, key(2, frame), &access(100, 5_000 + frame))));
            let third = (0..10).filter(|frame| index.contains(&key(2, *frame))).count();
            assert!(third >= 3, "{kind}: {third}");
        }
    }

    #[test]
    fn a_quota_holds_while_there_is_room_too() {
        for kind in PolicyKind::ALL {
            let mut index = EvictionIndex::new(kind, 1_000, 0.3);
            (0..10).for_each(|frame| drop(index.insert(0, key(0, frame), &access(100, frame))));
            assert_eq!(index.bytes(), 300, "{kind}");
            assert_eq!(
                index.insert(0, key(0, 99), &access(301, 99)),
                [key(0, 99)],
                "{kind}: more than its quota"
            );
            (0..10).for_each(|frame| drop(index.insert(1, key(1, frame), &access(100, 20 + frame))));
            assert_eq!(index.bytes(), 600, "{kind}");
        }
    }

    #[test]
    fn what_is_larger_than_the_tier_is_not_taken() {
        let mut index = EvictionIndex::new(PolicyKind::Lru, 100, 1.0);
        index.insert(0, key(0, 1), &access(100, 1));
        assert_eq!(index.insert(0, key(0, 2), &access(101, 2)), [key(0, 2)]);
        assert!(index.contains(&key(0, 1)) && index.bytes() == 100);
        let mut none = EvictionIndex::new(PolicyKind::Adaptive, 0, 1.0);
        assert_eq!(none.insert(0, key(0, 1), &access(1, 1)), [key(0, 1)]);
    }

    #[test]
    fn tenants_beyond_the_limit_share_a_number() {
        let mut numbers = TenantNumbers::default();
        let all: Vec<TenantIndex> = (0..100_000).map(|tenant| numbers.number(&tenant.to_string())).collect();
        assert_eq!(usize::from(*all.iter().max().unwrap()), limits::TENANTS_MAX - 1);
        assert_eq!(numbers.number("7"), 7);
    }
}
