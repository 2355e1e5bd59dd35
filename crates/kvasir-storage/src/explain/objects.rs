//! Explains why no object is found under a key.

use std::collections::HashSet;

use kvasir_api::{Cause, ExplainObjectsResponse, MissReason};
use kvasir_types::{ModelId, Name, ObjectKey, SeqHash};

use super::{Explain, cause, removed};
use crate::{error::ObjectError, limits};

impl Explain {
    /// Reports how many of the leading `keys` have an object, and why the next one has none, to its tenant,
    /// using only that tenant's data.
    ///
    /// # Errors
    /// [`ObjectError::Chunk`] if the store cannot be read.
    pub(crate) async fn explain_objects(
        &self,
        tenant: &Name,
        namespace: &Name,
        keys: &[ObjectKey],
    ) -> Result<ExplainObjectsResponse, ObjectError> {
        for (found, key) in keys.iter().enumerate() {
            if self.has_object(tenant, namespace, key).await? {
                continue;
            }
            let mut causes = self.traces_of(tenant, namespace, key).await?;
            causes.extend(self.elsewhere(tenant, namespace, key).await?);
            if causes.is_empty() {
                let detail = "no trace of this key: it was never stored, or removed so long ago that all traces are collected. \
                              Check that namespace and key are those of the engine that stores";
                causes.push(Cause { detail: detail.to_owned(), ..cause(MissReason::NeverStored) });
            }
            return Ok(ExplainObjectsResponse { keys: keys.len(), found, key: Some(key.clone()), causes });
        }
        let detail = "all of these keys have objects now".to_owned();
        let causes = vec![Cause { detail, ..cause(MissReason::Stored) }];
        Ok(ExplainObjectsResponse { keys: keys.len(), found: keys.len(), key: None, causes })
    }

    async fn has_object(
        &self,
        tenant: &Name,
        namespace: &Name,
        key: &ObjectKey,
    ) -> Result<bool, ObjectError> {
        match self.reads.opaque(tenant, namespace, key).await {
            Ok(_) => Ok(true),
            Err(ObjectError::Unknown { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The bucket's traces of a key that is a miss: tombstones, the latest one first, and unused objects.
    async fn traces_of(
        &self,
        tenant: &Name,
        namespace: &Name,
        key: &ObjectKey,
    ) -> Result<Vec<Cause>, ObjectError> {
        let names: HashSet<SeqHash> =
            self.catalog.object_names(tenant, namespace, key).await?.into_iter().collect();
        let mut causes = Vec::new();
        for name in &names {
            if !self.reads.offered_objects(tenant, &ModelId::OPAQUE, name).await?.is_empty() {
                let detail = "its objects cannot be read, or differ: two writers stored different bytes and one of them ended \
                              midway. The collector removes them after the grace period; store it again then";
                causes.push(Cause {
                    detail: detail.to_owned(),
                    seq_hash: Some(*name),
                    ..cause(MissReason::Quarantined)
                });
            }
        }
        let mut tombstones = self.tombstones(tenant, &ModelId::OPAQUE, &names).await?;
        tombstones.sort_by_key(|(_, meta)| std::cmp::Reverse(meta.last_modified));
        for (chunk, meta) in tombstones {
            if let Some(removal) = self.reads.tombstones().reason_at(&meta.location).await? {
                causes.push(removed(removal, &chunk, &meta));
            }
        }
        Ok(causes)
    }

    /// Other namespaces of the tenant that have the key.
    async fn elsewhere(
        &self,
        tenant: &Name,
        namespace: &Name,
        key: &ObjectKey,
    ) -> Result<Vec<Cause>, ObjectError> {
        let others = self.catalog.list_namespaces(tenant).await?;
        let mut causes = Vec::new();
        let others = others.into_iter().filter(|other| other != namespace);
        for other in others.take(limits::NAMESPACES_COMPARED_MAX) {
            if self.has_object(tenant, &other, key).await? {
                let detail = format!(
                    "namespace {other} has this key; namespaces never match each other: read from the one where the engine stores"
                );
                causes.push(Cause { detail, namespace: Some(other), ..cause(MissReason::OtherNamespace) });
            }
        }
        Ok(causes)
    }
}
