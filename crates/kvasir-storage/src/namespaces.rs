//! Roots of token chains. The salt behind them is the tenant's, lives in the store, and never leaves the service: who
//! does not get a root from us cannot guess the name of any chunk.

use futures::TryStreamExt;
use kvasir_types::{ModelId, Name, RootHash};
use object_store::{ObjectStoreExt, PutMode, PutPayload};

use crate::{
    Storage, StorageError, index::Scope, layout::Key, limits, store::Refusal, transitions::Transition,
};

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
        let root = RootHash::derive(tenant.as_str(), namespace.as_str(), &salt, model_id);
        // Chunks do not name their namespace: this is how events tell.
        self.namespaces.insert((Scope::new(tenant, model_id), *root.as_bytes()), namespace.clone());
        Ok(root)
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
        if !self.abilities.conditional_create {
            return self.agreed_salt(tenant).await;
        }
        let path = self.store.layout.path(&Key::Salt { tenant: tenant.clone() });
        let salt: Salt = rand::random();
        let payload = PutPayload::from(salt.to_vec());
        match self.store.store.put_opts(&path, payload, PutMode::Create.into()).await {
            Ok(_) => self.passed(Transition::SaltWritten),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {}
            Err(error) => return Err(StorageError::store("storing a salt")(error)),
        }
        self.written_salt(tenant).await
    }

    /// Agrees with other first writers where a create is no decision: each proposes a salt under a name of its own, all
    /// wait until every proposal that could have begun before is there or has failed, and write the first one by name.
    /// Nobody proposes once a proposal or a salt is there, and nobody uses a salt before all have had time to write the
    /// same one. Only a replica that is stopped between two of its own requests for longer than that could disagree,
    /// and it reads the result before it uses it.
    async fn agreed_salt(&self, tenant: &Name) -> Result<Salt, StorageError> {
        let settle = limits::FIRST_WRITER_SETTLE;
        if self.proposed_salt(tenant).await?.is_none() {
            let salt: Salt = rand::random();
            let path = self.store.layout.path(&Key::SaltProposal { tenant: tenant.clone(), salt });
            let proposing = self.store.store.put(&path, PutPayload::from_static(b"proposed"));
            // A proposal that takes longer may come too late: the caller asks again, and finds what others agreed on.
            match tokio::time::timeout(settle / 2, proposing).await {
                Ok(Ok(_)) => self.passed(Transition::SaltProposed),
                Ok(Err(error)) => return Err(StorageError::store("proposing a salt")(error)),
                Err(_) => {
                    return Err(StorageError::store("proposing a salt")(
                        Refusal::Deadline(settle / 2).into(),
                    ));
                }
            }
        }
        tokio::time::sleep(settle).await;
        if let Some(salt) = self.read_salt(tenant).await? {
            return Ok(salt);
        }
        let gone =
            StorageError::Damaged { what: "a tenant's salt", reason: "its proposals vanished".to_owned() };
        let salt = self.proposed_salt(tenant).await?.ok_or(gone)?;
        let path = self.store.layout.path(&Key::Salt { tenant: tenant.clone() });
        let written = self.store.store.put(&path, PutPayload::from(salt.to_vec())).await;
        written.map_err(StorageError::store("storing a salt"))?;
        self.passed(Transition::SaltWritten);
        tokio::time::sleep(settle).await;
        self.written_salt(tenant).await
    }

    /// The first proposal by name.
    async fn proposed_salt(&self, tenant: &Name) -> Result<Option<Salt>, StorageError> {
        let listed = self.store.store.list(Some(&self.store.layout.salts_prefix(tenant)));
        let listed: Vec<_> = listed.try_collect().await.map_err(StorageError::store("listing salts"))?;
        let salts = listed.iter().filter_map(|meta| match self.store.layout.parse(&meta.location) {
            Some(Key::SaltProposal { salt, .. }) => Some(salt),
            _ => None,
        });
        Ok(salts.min())
    }

    async fn written_salt(&self, tenant: &Name) -> Result<Salt, StorageError> {
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
