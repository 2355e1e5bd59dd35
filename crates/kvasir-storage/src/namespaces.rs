//! Roots of token chains. The salt behind them is the tenant's, lives in the store, and never leaves the service: who
//! does not get a root from us cannot guess the name of any chunk.

use kvasir_types::{ModelId, Name, RootHash};
use object_store::{ObjectStoreExt, PutMode, PutPayload};

use crate::{Storage, StorageError, layout::Key, limits};

type Salt = [u8; limits::SALT_BYTES];

impl Storage {
    /// The root of a namespace under a registered model; the namespace comes into being by being asked for.
    ///
    /// # Errors
    /// [`StorageError::UnknownModel`], [`Store`](StorageError::Store), [`Damaged`](StorageError::Damaged).
    pub async fn root(
        &self,
        tenant: &Name,
        namespace: &Name,
        model_id: &ModelId,
    ) -> Result<RootHash, StorageError> {
        self.model(tenant, model_id).await?;
        let salt = self.salt(tenant).await?;
        Ok(RootHash::derive(tenant.as_str(), namespace.as_str(), &salt, model_id))
    }

    async fn salt(&self, tenant: &Name) -> Result<Salt, StorageError> {
        if let Some(salt) = self.salts.get(tenant) {
            return Ok(salt);
        }
        let salt = match self.read_salt(tenant).await? {
            Some(salt) => salt,
            None => self.first_salt(tenant).await?,
        };
        self.salts.insert(tenant.clone(), salt);
        Ok(salt)
    }

    /// Writes a salt, unless another replica was first, and gives the one that is there then.
    async fn first_salt(&self, tenant: &Name) -> Result<Salt, StorageError> {
        let path = self.store.layout.path(&Key::Salt { tenant: tenant.clone() });
        let salt: Salt = rand::random();
        let payload = PutPayload::from(salt.to_vec());
        match self.store.store.put_opts(&path, payload, PutMode::Create.into()).await {
            Ok(_)
            | Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {}
            Err(error) => return Err(StorageError::store("storing a salt")(error)),
        }
        if !self.abilities.conditional_create {
            // The last of several first writers won; they all wait until every one of them has written.
            tokio::time::sleep(limits::FIRST_WRITER_SETTLE).await;
        }
        let gone = StorageError::Damaged { what: "a tenant's salt", reason: "it vanished".to_owned() };
        self.read_salt(tenant).await?.ok_or(gone)
    }

    async fn read_salt(&self, tenant: &Name) -> Result<Option<Salt>, StorageError> {
        let path = self.store.layout.path(&Key::Salt { tenant: tenant.clone() });
        let failed = StorageError::store("reading a salt");
        let bytes = match self.store.store.get(&path).await {
            Ok(found) => found.bytes().await.map_err(failed)?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let salt = Salt::try_from(&bytes[..]);
        let reason = format!("it has {} bytes instead of {}", bytes.len(), limits::SALT_BYTES);
        salt.map(Some).map_err(|_| StorageError::Damaged { what: "a tenant's salt", reason })
    }
}
