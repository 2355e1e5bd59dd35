//! Roots of token chains. The salt behind them belongs to the tenant, is kept in the store, and never leaves
//! the service: without a root from the service, the name of a chunk cannot be guessed.

use std::sync::Arc;

use futures::TryStreamExt;
use kvasir_store::{StoreError, layout::Key, once, synced};
use kvasir_types::{ModelId, Name, RootHash};
use object_store::{PutPayload, path::Path};
use uuid::Uuid;

use super::Catalog;
use crate::{error::CatalogError, index::Scope, limits, transitions::Transition};

pub(crate) type Salt = [u8; limits::SALT_BYTES];

impl Catalog {
    /// The root of a namespace under a registered model; the namespace comes into being by being asked for.
    ///
    /// # Errors
    /// [`CatalogError::UnknownModel`], [`Store`](CatalogError::Store).
    pub async fn root(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        model_id: &ModelId,
    ) -> Result<RootHash, CatalogError> {
        Ok(self.roots(tenant, namespace, model_id).await?.0)
    }

    /// The root where new chains of a namespace start, and those of earlier salts under which lookups still find
    /// chunks, the newest first.
    pub(crate) async fn roots(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        model_id: &ModelId,
    ) -> Result<(RootHash, Vec<RootHash>), CatalogError> {
        if *model_id != ModelId::OPAQUE {
            self.model(tenant, model_id).await?;
        }
        let rotations = self.salt_rotations(tenant, namespace).await?;
        let mut salts = rotations.live();
        if rotations.has_first() {
            salts.push(self.salt(tenant).await?);
        }
        let scope = Scope::new(tenant, model_id);
        let mut roots = salts.iter().map(|salt| {
            let root = RootHash::derive(tenant.as_str(), namespace.as_str(), salt, model_id);
            self.note_label(scope, root.first_parent(), namespace);
            root
        });
        let newest = roots.next().expect("without later salts the first one is live");
        Ok((newest, roots.collect()))
    }

    pub(crate) async fn salt(&self, tenant: &Name) -> Result<Salt, StoreError> {
        let known = (tenant.clone(), self.bucket.seals(tenant));
        if let Some(salt) = self.salts.get(&known) {
            return Ok(salt);
        }
        let salt = match self.read_salt(tenant).await? {
            Some(salt) => salt,
            None => self.first_salt(tenant).await?,
        };
        self.salts.insert(known, salt);
        Ok(salt)
    }

    /// Writes a salt, unless another replica was first; returns the one in the store.
    async fn first_salt(&self, tenant: &Name) -> Result<Salt, StoreError> {
        if !self.bucket.abilities().conditional_create {
            return self.agreed_salt(tenant).await;
        }
        let path = self.bucket.path(&Key::Salt { tenant: tenant.clone() });
        let salt: Salt = rand::random();
        let payload = PutPayload::from(salt_record(tenant, &salt));
        if self.bucket.create(&path, payload, "storing a salt").await? {
            self.bucket.reached(Transition::SaltWritten);
        }
        self.written_salt(tenant).await
    }

    /// Agrees with other first writers on a store without conditional creates. Each proposes a salt under a
    /// unique name, written once. All wait until concurrent proposals have arrived, and use the one that the
    /// store dates first. A late proposal, however late, has a late date, so all choose the same one.
    async fn agreed_salt(&self, tenant: &Name) -> Result<Salt, StoreError> {
        if self.first_proposal(tenant).await?.is_none() {
            let salt: Salt = rand::random();
            let path = self.bucket.path(&Key::SaltProposal { tenant: tenant.clone(), id: Uuid::new_v4() });
            let record = PutPayload::from(salt_record(tenant, &salt));
            let proposal = self.bucket.objects().put_opts(&path, record, once());
            // Do not retry if its outcome is unknown: that would date it again.
            proposal.await.map_err(StoreError::request("proposing a salt"))?;
            self.bucket.reached(Transition::SaltProposed);
        }
        tokio::time::sleep(limits::FIRST_WRITER_SETTLE).await;
        if let Some(salt) = self.read_salt(tenant).await? {
            return Ok(salt);
        }
        let gone =
            || StoreError::Damaged { what: "a tenant's salt", reason: "its proposals vanished".to_owned() };
        let first = self.first_proposal(tenant).await?.ok_or_else(gone)?;
        let salt = self.salt_at(tenant, &first).await?.ok_or_else(gone)?;
        let path = self.bucket.path(&Key::Salt { tenant: tenant.clone() });
        self.bucket.put(&path, PutPayload::from(salt_record(tenant, &salt)), "storing a salt").await?;
        self.bucket.reached(Transition::SaltWritten);
        self.written_salt(tenant).await
    }

    /// The proposal that the store dates first; among equal dates, the first by name.
    async fn first_proposal(&self, tenant: &Name) -> Result<Option<Path>, StoreError> {
        let listed = self.bucket.list(&self.bucket.layout().salts_prefix(tenant), "listing salts");
        let listed: Vec<_> = listed.try_collect().await?;
        let proposals = listed.into_iter().filter(|(key, _)| matches!(key, Key::SaltProposal { .. }));
        Ok(proposals.map(|(_, meta)| (meta.last_modified, meta.location)).min().map(|(_, path)| path))
    }

    async fn written_salt(&self, tenant: &Name) -> Result<Salt, StoreError> {
        let gone = StoreError::Damaged { what: "a tenant's salt", reason: "it vanished".to_owned() };
        self.read_salt(tenant).await?.ok_or(gone)
    }

    async fn read_salt(&self, tenant: &Name) -> Result<Option<Salt>, StoreError> {
        self.salt_at(tenant, &self.bucket.path(&Key::Salt { tenant: tenant.clone() })).await
    }

    async fn salt_at(&self, tenant: &Name, path: &Path) -> Result<Option<Salt>, StoreError> {
        let mut reason = String::new();
        // One bad read may be a transfer error; two mean that the store's copy is bad.
        for _ in 0..limits::SALT_READS {
            // Another replica may have written it just now, and what is stored under it is lost without it.
            let read = self.bucket.get_with(path, synced(), "reading a salt").await?;
            let Some(bytes) = read else { return Ok(None) };
            match bytes.first_chunk().filter(|salt| salt_record(tenant, salt) == bytes) {
                Some(salt) => return Ok(Some(*salt)),
                None => reason = format!("its {} bytes do not match their checksum", bytes.len()),
            }
        }
        Err(StoreError::Damaged { what: "a tenant's salt", reason })
    }
}

/// The record under [`Key::Salt`]: the salt, and a hash of it and its owner. A wrong salt would hide all of a
/// tenant's data, so another tenant's or a damaged one must be rejected.
pub fn salt_record(tenant: &Name, salt: &[u8; limits::SALT_BYTES]) -> Vec<u8> {
    let mut hash = blake3::Hasher::new_derive_key("kvasir/1 salt record");
    hash.update(tenant.as_str().as_bytes()).update(salt);
    [&salt[..], hash.finalize().as_bytes()].concat()
}
