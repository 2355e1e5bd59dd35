//! What a collector counts while it lists the store.

use std::collections::{BTreeMap, HashSet};

use kvasir_types::Name;

use super::ledger::Stored;

/// The collector's count from a listing.
#[derive(Debug, Default)]
pub(crate) struct Count {
    pub(super) tenants: BTreeMap<Name, Stored>,
    /// Objects young enough to be in the journal during this pass.
    pub(super) recent: HashSet<[u8; 32]>,
}

impl Count {
    /// Counts a listed object; `digest` identifies it if it is young.
    pub(crate) fn met(&mut self, tenant: &Name, bytes: u64, digest: Option<[u8; 32]>) {
        self.recent.extend(digest);
        let sum = self.tenants.entry(tenant.clone()).or_default();
        *sum = sum.plus(Stored::one(bytes));
    }

    /// A listed object was deleted.
    pub(crate) fn deleted(&mut self, tenant: &Name, bytes: u64) {
        let sum = self.tenants.entry(tenant.clone()).or_default();
        *sum = sum.minus(Stored::one(bytes));
    }
}
