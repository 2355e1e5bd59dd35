//! Records of models and namespaces. They count against the quota, as all that a tenant stores does.

use std::sync::Arc;

use kvasir_api::RegisteredModel;
use kvasir_store::{StoreError, layout::Key, trace::carry};
use kvasir_types::{ModelId, ModelSpec, Name, RootHash};

use super::Ingest;
use crate::{
    catalog::Catalog,
    changes::{ledger::Reservation, path_digest},
    error::CatalogError,
};

impl Ingest {
    /// Registers a model. Idempotent. `reservation` is the quota reserved for its spec.
    ///
    /// Continues if the caller disconnects.
    ///
    /// # Errors
    /// [`CatalogError::InvalidSpec`], [`Store`](CatalogError::Store).
    pub async fn register_model(
        self: &Arc<Self>,
        tenant: &Name,
        spec: ModelSpec,
        reservation: Option<Arc<Reservation>>,
    ) -> Result<RegisteredModel, CatalogError> {
        let (this, tenant) = (Arc::clone(self), tenant.clone());
        let writing = tokio::spawn(carry(async move {
            let _reservation = reservation;
            let bytes = Catalog::spec_bytes(&spec)?;
            let registered = this.catalog.register_model(&tenant, spec).await?;
            if registered.created {
                let key = Key::Spec { tenant: tenant.clone(), model_id: registered.model_id };
                this.note_record(&tenant, &key, bytes);
            }
            Ok::<_, CatalogError>(registered)
        }));
        writing.await.map_err(StoreError::from)?
    }

    /// The root of a namespace, which is recorded as requested. `reservation` is the quota reserved for its record.
    ///
    /// Continues if the caller disconnects.
    ///
    /// # Errors
    /// As [`Catalog::root`].
    pub async fn open_namespace(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        model_id: &ModelId,
        reservation: Option<Arc<Reservation>>,
    ) -> Result<RootHash, CatalogError> {
        let root = self.catalog.root(tenant, namespace, model_id).await?;
        let (this, tenant, namespace) = (Arc::clone(self), tenant.clone(), namespace.clone());
        let writing = tokio::spawn(carry(async move {
            let _reservation = reservation;
            this.record_namespace(&tenant, &namespace).await
        }));
        writing.await.map_err(StoreError::from)??;
        Ok(root)
    }

    /// Records a namespace as requested, and counts the record if it is new.
    pub(super) async fn record_namespace(&self, tenant: &Name, namespace: &Name) -> Result<(), StoreError> {
        if self.catalog.record_namespace(tenant, namespace).await? {
            let key = Key::Namespace { tenant: tenant.clone(), namespace: namespace.clone() };
            self.note_record(tenant, &key, 0);
        }
        Ok(())
    }

    fn note_record(&self, tenant: &Name, key: &Key, bytes: u64) {
        self.changes.note_stored(tenant, path_digest(&self.bucket.path(key)), bytes);
    }
}
