//! The eviction order of one medium: one policy per tenant, so that no tenant can push another below its equal part.

use std::collections::HashMap;

use kvasir_eviction::{Access, EvictionPolicy, Moment, PolicyKind};

use crate::limits;

use super::FrameKey;

/// A tenant's number in the tier; tenants beyond [`limits::HOT_TENANTS_MAX`] share the last.
pub(super) type TenantIndex = u16;

/// The frames of a medium by tenant, and the order in which they are evicted.
#[derive(Debug)]
pub(super) struct EvictionIndex {
    kind: PolicyKind,
    capacity: u64,
    /// What one tenant may hold.
    quota: u64,
    tenants: Vec<Box<dyn EvictionPolicy<FrameKey>>>,
    owner: HashMap<FrameKey, TenantIndex>,
    bytes: u64,
}

impl EvictionIndex {
    pub(super) fn new(kind: PolicyKind, capacity: u64, tenant_share_max: f64) -> Self {
        let quota = (capacity as f64 * tenant_share_max.clamp(0.0, 1.0)) as u64;
        Self { kind, capacity, quota, tenants: Vec::new(), owner: HashMap::new(), bytes: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn contains(&self, key: &FrameKey) -> bool {
        self.owner.contains_key(key)
    }

    pub(super) fn touch(&mut self, key: &FrameKey, access: &Access<FrameKey>) {
        if let Some(tenant) = self.owner.get(key) {
            self.tenants[usize::from(*tenant)].touch(key, access);
        }
    }

    /// Admits a frame and returns the victims evicted for it; the frame itself where it is worth less than all others.
    pub(super) fn insert(
        &mut self,
        tenant: TenantIndex,
        key: FrameKey,
        access: &Access<FrameKey>,
    ) -> Vec<FrameKey> {
        self.remove(&key);
        if access.bytes > self.quota {
            return vec![key];
        }
        while self.tenants.len() <= usize::from(tenant) {
            self.tenants.push(self.kind.build());
        }
        self.tenants[usize::from(tenant)].insert(key, access);
        self.owner.insert(key, tenant);
        self.bytes += access.bytes;
        let mut victims = Vec::new();
        while self.tenants[usize::from(tenant)].bytes() > self.quota {
            let Some(victim) = self.evict_of(tenant, access.now) else { break };
            victims.push(victim);
        }
        while self.bytes > self.capacity {
            let Some(victim) = self.evict(access.now) else { break };
            victims.push(victim);
        }
        victims
    }

    /// The tenant that holds most gives way: it holds at least an equal share, whoever asks for room.
    fn evict(&mut self, now: Moment) -> Option<FrameKey> {
        let largest = (0..self.tenants.len()).max_by_key(|tenant| self.tenants[*tenant].bytes())?;
        self.evict_of(largest as TenantIndex, now)
    }

    fn evict_of(&mut self, tenant: TenantIndex, now: Moment) -> Option<FrameKey> {
        let policy = &mut self.tenants[usize::from(tenant)];
        let before = policy.bytes();
        let victim = policy.evict(now)?;
        self.bytes -= before - policy.bytes();
        self.owner.remove(&victim);
        Some(victim)
    }

    pub(super) fn remove(&mut self, key: &FrameKey) -> bool {
        let Some(tenant) = self.owner.remove(key) else { return false };
        let policy = &mut self.tenants[usize::from(tenant)];
        let before = policy.bytes();
        policy.remove(key);
        self.bytes -= before - policy.bytes();
        true
    }
}

/// Numbers tenants in the order they come.
#[derive(Debug, Default)]
pub(super) struct TenantNumbers(HashMap<String, TenantIndex>);

impl TenantNumbers {
    pub(super) fn number(&mut self, tenant: &str) -> TenantIndex {
        if let Some(number) = self.0.get(tenant) {
            return *number;
        }
        let number = self.0.len().min(limits::HOT_TENANTS_MAX - 1) as TenantIndex;
        if self.0.len() < limits::HOT_TENANTS_MAX {
            self.0.insert(tenant.to_owned(), number);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_eviction::ClassId;

    fn key(tenant: u8, frame: u32) -> FrameKey {
        FrameKey { object: [tenant; 16], frame }
    }

    fn access(bytes: u64, frame: u32) -> Access<FrameKey> {
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
            // A third comes in and gets its share from the two.
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
        assert_eq!(usize::from(*all.iter().max().unwrap()), limits::HOT_TENANTS_MAX - 1);
        assert_eq!(numbers.number("7"), 7);
    }
}
