//! Limits the actions that one pass spends on one tenant. A pass is rate-limited, and a tenant with millions of chunks to
//! delete must not delay the other tenants' deletions for hours. The rest waits for the next pass, which begins with a
//! full budget for every tenant. Where there are few tenants, each has more.

use std::collections::HashMap;

use kvasir_types::Name;
use parking_lot::Mutex;

use super::GcPolicy;
use crate::limits;

/// The actions of one pass, counted by tenant. Shared by the requests that it has under way.
#[derive(Debug)]
pub(super) struct TenantActionBudget {
    /// Actions of each tenant.
    budget: u32,
    taken: Mutex<HashMap<Name, u32>>,
}

impl TenantActionBudget {
    /// The budgets of a pass over a store with so many tenants. Without a rate limit there is nothing to share.
    pub(super) fn of(policy: &GcPolicy, tenants: usize) -> Self {
        let equal = limits::GC_TENANTS_SECONDS / u32::try_from(tenants).unwrap_or(u32::MAX).max(1);
        let seconds = equal.max(limits::GC_TENANT_SECONDS);
        let budget = match policy.actions_per_second {
            0 => u32::MAX,
            rate => rate.saturating_mul(seconds).max(limits::GC_TENANT_ACTIONS_MIN),
        };
        Self { budget, taken: Mutex::default() }
    }

    /// Whether a tenant may take another action in this pass.
    pub(super) fn has_remaining(&self, tenant: &Name) -> bool {
        self.taken.lock().get(tenant).is_none_or(|taken| *taken < self.budget)
    }

    /// Takes one action for a tenant, if its budget allows.
    pub(super) fn try_take(&self, tenant: &Name) -> bool {
        let mut taken = self.taken.lock();
        let taken = taken.entry(tenant.clone()).or_default();
        let has_remaining = *taken < self.budget;
        *taken += u32::from(has_remaining);
        has_remaining
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_use_up_the_actions_of_another() {
        let (a, b): (Name, Name) = ("a".parse().expect("a name"), "b".parse().expect("a name"));
        let of = |actions_per_second, tenants| {
            TenantActionBudget::of(&GcPolicy { actions_per_second, ..GcPolicy::default() }, tenants)
        };
        let of_many = [(1, 10_000), (100, 10_000), (250, 25_000)].map(|(rate, actions)| (rate, 100, actions));
        // A pass that counts no tenant meets none, or the first one of all.
        let of_few = [(0, 50_000), (1, 50_000), (2, 25_000), (4, 12_500), (5, 10_000)];
        let of_few = of_few.map(|(tenants, actions)| (100, tenants, actions));
        for (rate, tenants, actions) in of_many.into_iter().chain(of_few) {
            let budget = of(rate, tenants);
            assert_eq!((0..2 * actions).filter(|_| budget.try_take(&a)).count(), actions);
            assert!(!budget.has_remaining(&a) && budget.try_take(&b));
        }
        let unlimited = of(0, 1);
        assert!((0..100_000).all(|_| unlimited.try_take(&a)) && unlimited.has_remaining(&a));
    }
}
