//! Keys of encryption at rest, from a file that may change while the service runs.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use kvasir_storage::seal::{FileKeys, KeyService, KeyServiceError};
use kvasir_types::Name;

use crate::reload::Reloaded;

/// The keys file, as of its last usable state.
#[derive(Debug, Clone)]
pub(crate) struct Keys(Arc<Reloaded<FileKeys>>);

/// A keys file that cannot be used at start.
#[derive(Debug, thiserror::Error)]
#[error("encryption.keys_file: {0}")]
pub struct KeysError(String);

impl Keys {
    /// Reads the file.
    ///
    /// # Errors
    /// [`KeysError`].
    pub(crate) fn open(path: &Path) -> Result<Self, KeysError> {
        let parse = |files: &[Vec<u8>]| {
            let text = std::str::from_utf8(&files[0]).map_err(|e| format!("is no UTF-8: {e}"))?;
            FileKeys::parse(text)
        };
        Reloaded::open(&[path], parse).map(|file| Self(Arc::new(file))).map_err(KeysError)
    }

    pub(crate) fn reload(&self) {
        self.0.refresh();
    }
}

#[async_trait]
impl KeyService for Keys {
    fn current(&self, tenant: &Name) -> Option<Name> {
        self.0.get().current(tenant)
    }

    async fn wrap(
        &self,
        tenant: &Name,
        id: &Name,
        key: &[u8; 32],
        context: &[u8],
    ) -> Result<Vec<u8>, KeyServiceError> {
        self.0.get().wrap(tenant, id, key, context).await
    }

    async fn unwrap(
        &self,
        tenant: &Name,
        id: &Name,
        wrapped: &[u8],
        context: &[u8],
    ) -> Result<kvasir_storage::seal::KeyBytes, KeyServiceError> {
        self.0.get().unwrap(tenant, id, wrapped, context).await
    }
}
