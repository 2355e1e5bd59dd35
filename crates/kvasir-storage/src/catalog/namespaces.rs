//! A tenant's namespaces, and the namespace of a chunk.
//!
//! Requested namespaces are recorded, as one empty object each. A chunk object does not name its namespace:
//! the root of its chain is derived from it. Writers send the name with the object, and the journal carries
//! it; if neither did, the previous chunk's namespace is used. Only events need it, as a label; no decision
//! depends on it.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, future};
use kvasir_store::{StoreError, layout::Key, synced};
use kvasir_types::{ModelId, Name, ObjectKey, SeqHash};
use object_store::{GetOptions, PutPayload, path::Path};

use super::Catalog;
use crate::{error::CatalogError, index::Scope, limits};

impl Catalog {
    /// Records a namespace as requested. Returns whether it was not yet.
    pub(crate) async fn record_namespace(&self, tenant: &Name, namespace: &Name) -> Result<bool, StoreError> {
        if self.has_namespace(tenant, namespace).await? {
            return Ok(false);
        }
        let path = self.namespace_path(tenant, namespace);
        // Always empty: it does not matter who writes it last.
        let created = self.bucket.create(&path, PutPayload::new(), "recording a namespace").await?;
        self.registered.insert((tenant.clone(), namespace.clone()), ());
        Ok(created)
    }

    /// Whether a namespace is recorded as requested.
    ///
    /// # Errors
    /// [`StoreError::Request`].
    pub async fn has_namespace(&self, tenant: &Name, namespace: &Name) -> Result<bool, StoreError> {
        let known = (tenant.clone(), namespace.clone());
        if self.registered.contains(&known) {
            return Ok(true);
        }
        let path = self.namespace_path(tenant, namespace);
        let head = GetOptions { head: true, ..synced() };
        let is_there = self.bucket.open_object(&path, head, "asking for a namespace").await?.is_some();
        if is_there {
            self.registered.insert(known, ());
        }
        Ok(is_there)
    }

    fn namespace_path(&self, tenant: &Name, namespace: &Name) -> Path {
        let (tenant, namespace) = (tenant.clone(), namespace.clone());
        self.bucket.path(&Key::Namespace { tenant, namespace })
    }

    /// The names that an opaque object may have: under the newest salt of its namespace, then under earlier
    /// ones that are still searched.
    pub(crate) async fn object_names(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        key: &ObjectKey,
    ) -> Result<Vec<SeqHash>, CatalogError> {
        let (newest, before) = self.roots(tenant, namespace, &ModelId::OPAQUE).await?;
        Ok(std::iter::once(newest).chain(before).map(|root| root.chain_key().object(key)).collect())
    }

    /// The tenant's requested namespaces, in order; the first [`limits::NAMESPACES_LISTED_MAX`].
    ///
    /// # Errors
    /// [`StoreError::Request`].
    pub async fn list_namespaces(&self, tenant: &Name) -> Result<Vec<Name>, StoreError> {
        let prefix = self.bucket.layout().namespaces_prefix(tenant);
        let listed = self.bucket.list(&prefix, "listing namespaces").take(limits::NAMESPACES_LISTED_MAX);
        let names = listed.try_filter_map(|(key, _)| {
            future::ready(Ok(match key {
                Key::Namespace { namespace, .. } => Some(namespace),
                _ => None,
            }))
        });
        let mut names: Vec<_> = names.try_collect().await?;
        names.sort();
        Ok(names)
    }

    /// The namespace of a chunk, by its own hash or its parent's, if this replica has seen either.
    pub(crate) fn label(&self, scope: Scope, seq_hash: &SeqHash, parent: Option<[u8; 32]>) -> Option<Name> {
        let own = self.labels.get(&(scope, *seq_hash.as_bytes()));
        own.or_else(|| self.labels.get(&(scope, parent?)))
    }

    /// Records that a root or a chunk belongs to a namespace.
    pub(crate) fn note_label(&self, scope: Scope, hash: [u8; 32], namespace: &Name) {
        self.labels.insert((scope, hash), namespace.clone());
    }
}
