//! What one tenant may take of a pass: a pass does so many actions a second, and whoever has millions of chunks to lose
//! must not keep the others' room from them for hours. What is beyond waits for the next pass, which begins with a new
//! share for everybody.

use std::collections::HashMap;

use kvasir_types::Name;

use super::GcPolicy;
use crate::limits;

/// Actions of a pass by tenant.
#[derive(Debug, Default)]
pub(super) struct Share(HashMap<Name, u32>);

impl Share {
    /// Whether a tenant has anything left.
    pub(super) fn is_left(&self, tenant: &Name) -> bool {
        self.0.get(tenant).is_none_or(|taken| *taken < limits::GC_TENANT_ACTIONS_MAX)
    }

    /// Takes one action for a tenant, if it has any left. Where a pass is not slowed nobody waits for anybody.
    pub(super) fn take(&mut self, tenant: &Name, policy: &GcPolicy) -> bool {
        if policy.actions_per_second == 0 {
            return true;
        }
        if !self.is_left(tenant) {
            return false;
        }
        *self.0.entry(tenant.clone()).or_default() += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_much_to_lose_leaves_the_others_their_part() {
        let (mut share, policy) = (Share::default(), GcPolicy::default());
        let (a, b): (Name, Name) = ("a".parse().expect("a name"), "b".parse().expect("a name"));
        let taken = (0..3 * limits::GC_TENANT_ACTIONS_MAX).filter(|_| share.take(&a, &policy)).count();
        assert_eq!(taken, limits::GC_TENANT_ACTIONS_MAX as usize);
        assert!(!share.is_left(&a) && share.take(&b, &policy));
        let unslowed = GcPolicy { actions_per_second: 0, ..policy };
        assert!(share.take(&a, &unslowed));
    }
}
