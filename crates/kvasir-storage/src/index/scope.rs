//! Separates the rows of tenants and models.

use kvasir_types::{ModelId, Name};

/// Separates tenants and models in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope([u8; 8]);

impl Scope {
    /// The scope of a tenant's model.
    pub fn new(tenant: &Name, model_id: &ModelId) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(model_id.as_bytes()).update(tenant.as_str().as_bytes());
        let mut scope = [0; 8];
        hasher.finalize_xof().fill(&mut scope);
        Self(scope)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}
