//! Which namespaces a tenant has, and which one a chunk belongs to.
//!
//! Namespaces that callers ask for are written down, one empty object each. A chunk object does not name its namespace: the
//! root of its chain is derived from it. Writers say it beside the object, the journal carries it, and where neither did,
//! the chunk before tells. Only events need it: a label, never a decision.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, future};
use kvasir_store::{StoreError, layout::Key};
use kvasir_types::{ModelId, Name, ObjectKey, RootHash, SeqHash};
use object_store::PutPayload;

use super::Catalog;
use crate::{error::CatalogError, index::Scope, limits};

impl Catalog {
    /// The root of a namespace, which is written down as one that was asked for.
    ///
    /// # Errors
    /// As [`root`](Self::root).
    pub async fn open_namespace(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        model_id: &ModelId,
    ) -> Result<RootHash, CatalogError> {
        let root = self.root(tenant, namespace, model_id).await?;
        let known = (tenant.clone(), namespace.clone());
        if self.registered.contains(&known) {
            return Ok(root);
        }
        let key = Key::Namespace { tenant: tenant.clone(), namespace: namespace.clone() };
        // Empty and always the same: it does not matter who writes it last.
        self.bucket.put(&self.bucket.path(&key), PutPayload::new(), "writing a namespace down").await?;
        self.registered.insert(known, ());
        Ok(root)
    }

    /// The names that an opaque object may have: under the newest salt of its namespace, then under those before it that are
    /// still looked under.
    pub(crate) async fn object_names(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        key: &ObjectKey,
    ) -> Result<Vec<SeqHash>, CatalogError> {
        let (newest, before) = self.roots(tenant, namespace, &ModelId::OPAQUE).await?;
        Ok(std::iter::once(newest).chain(before).map(|root| root.chain_key().object(key)).collect())
    }

    /// The namespaces that a tenant asked for, in order; the first [`limits::NAMESPACES_LISTED_MAX`].
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

    /// The namespace of a chunk, by its own hash or the hash before it, as far as this replica has met either.
    pub(crate) fn label(&self, scope: Scope, seq_hash: &SeqHash, parent: Option<[u8; 32]>) -> Option<Name> {
        let own = self.labels.get(&(scope, *seq_hash.as_bytes()));
        own.or_else(|| self.labels.get(&(scope, parent?)))
    }

    /// Takes note of what belongs to a namespace: a root, or a chunk.
    pub(crate) fn note_label(&self, scope: Scope, hash: [u8; 32], namespace: &Name) {
        self.labels.insert((scope, hash), namespace.clone());
    }
}
