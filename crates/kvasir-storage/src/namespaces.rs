//! Which namespaces a tenant has, and which one a chunk belongs to.
//!
//! A chunk does not name its namespace: the root of its chain is derived from it. Asked-for namespaces are written
//! down, one empty object each, so that every replica can derive their roots again; from there the chain tells. Only
//! events and `explain` need this, never a lookup.

use futures::{StreamExt, TryStreamExt};
use kvasir_types::{ModelId, Name, RootHash, SeqHash};
use object_store::{ObjectStoreExt, PutPayload};

use crate::{Storage, StorageError, index::Scope, layout::Key, limits};

impl Storage {
    /// The root of a namespace, which is written down as one that was asked for.
    ///
    /// # Errors
    /// As [`root`](Self::root).
    pub async fn open_namespace(
        &self,
        tenant: &Name,
        namespace: &Name,
        model_id: &ModelId,
    ) -> Result<RootHash, StorageError> {
        let root = self.root(tenant, namespace, model_id).await?;
        let known = (tenant.clone(), namespace.clone());
        if self.registered.contains(&known) {
            return Ok(root);
        }
        let key = Key::Namespace { tenant: tenant.clone(), namespace: namespace.clone() };
        // Empty and always the same: it does not matter who writes it last.
        let written = self.store.store.put(&self.store.layout.path(&key), PutPayload::new()).await;
        written.map_err(StorageError::store("writing a namespace down"))?;
        self.registered.insert(known, ());
        Ok(root)
    }

    /// The namespaces that a tenant asked for, in order; the first [`limits::NAMESPACES_LISTED_MAX`].
    ///
    /// # Errors
    /// [`StorageError::Store`].
    pub async fn list_namespaces(&self, tenant: &Name) -> Result<Vec<Name>, StorageError> {
        let prefix = self.store.layout.namespaces_prefix(tenant);
        let listed = self.store.store.list(Some(&prefix)).take(limits::NAMESPACES_LISTED_MAX);
        let listed: Vec<_> = listed.try_collect().await.map_err(StorageError::store("listing namespaces"))?;
        let names = listed.iter().filter_map(|meta| match self.store.layout.parse(&meta.location) {
            Some(Key::Namespace { namespace, .. }) => Some(namespace),
            _ => None,
        });
        let mut names: Vec<_> = names.collect();
        names.sort();
        Ok(names)
    }

    /// The namespace of a chunk, by the hash before it. None where it cannot be told.
    pub(crate) async fn namespace_of(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
        parent: [u8; 32],
    ) -> Option<Name> {
        let scope = Scope::new(tenant, model_id);
        let mut met = vec![*seq_hash.as_bytes()];
        let mut next = parent;
        let mut roots_derived = false;
        for _ in 0..limits::ANCESTORS_MAX {
            if let Some(namespace) = self.namespaces.get(&(scope, next)) {
                for hash in met {
                    self.namespaces.insert((scope, hash), namespace.clone());
                }
                return Some(namespace);
            }
            // A root that this replica was not asked for, or a chunk before this one.
            match self.preferred(tenant, model_id, &next.into()).await {
                Ok(key) => {
                    met.push(next);
                    next = self.entry(&key).await.ok()?.parent_hash;
                }
                Err(_) if !roots_derived => {
                    roots_derived = true;
                    self.derive_roots(tenant, model_id).await.ok()?;
                }
                Err(_) => return None,
            }
        }
        None
    }

    async fn derive_roots(&self, tenant: &Name, model_id: &ModelId) -> Result<(), StorageError> {
        for namespace in self.list_namespaces(tenant).await? {
            self.root(tenant, &namespace, model_id).await?;
        }
        Ok(())
    }
}
