//! Limits the actions that one pass spends on one tenant. A pass is rate-limited, and a tenant with millions of chunks to
//! delete must not delay the other tenants' deletions for hours. The rest waits for the next pass, which begins with a
//! full budget for every tenant.

use std::collections::HashMap;

use kvasir_types::Name;
use parking_lot::Mutex;

use super::GcPolicy;
use crate::limits;

/// The actions of one pass, counted by tenant. Shared by the requests that it has under way.
#[derive(Debug, Default)]
pub(super) struct TenantActionBudget(Mutex<HashMap<Name, u32>>);

impl TenantActionBudget {
    /// Whether a tenant may take another action in this pass.
    pub(super) fn has_remaining(&self, tenant: &Name) -> bool {
        self.0.lock().get(tenant).is_none_or(|taken| *taken < limits::GC_TENANT_ACTIONS_MAX)
    }

    /// Takes one action for a tenant, if its budget allows. A pass without a rate limit has no budgets.
    pub(super) fn try_take(&self, tenant: &Name, policy: &GcPolicy) -> bool {
        if policy.actions_per_second == 0 {
            return true;
        }
        let mut taken = self.0.lock();
        let taken = taken.entry(tenant.clone()).or_default();
        let has_remaining = *taken < limits::GC_TENANT_ACTIONS_MAX;
        *taken += u32::from(has_remaining);
        has_remaining
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_use_up_the_actions_of_another() {
        let (budget, policy) = (TenantActionBudget::default(), GcPolicy::default());
        let (a, b): (Name, Name) = ("a".parse().expect("a name"), "b".parse().expect("a name"));
        let taken = (0..3 * limits::GC_TENANT_ACTIONS_MAX).filter(|_| budget.try_take(&a, &policy)).count();
        assert_eq!(taken, limits::GC_TENANT_ACTIONS_MAX as usize);
        assert!(!budget.has_remaining(&a) && budget.try_take(&b, &policy));
        let unslowed = GcPolicy { actions_per_second: 0, ..policy };
        assert!(budget.try_take(&a, &unslowed));
    }
}
