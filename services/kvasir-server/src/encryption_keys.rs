//! Keys of encryption at rest: from a file that may change while the service runs, or given outright.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use kvasir_storage::seal::{FileKeys, KeyBytes, KeyService, KeyServiceError};
use kvasir_types::Name;

use crate::{config::Config, reload::ReloadableFiles};

/// The keys, as of their last usable state.
#[derive(Debug, Clone)]
pub(crate) struct EncryptionKeys(KeySource);

#[derive(Debug, Clone)]
enum KeySource {
    File(Arc<ReloadableFiles<FileKeys>>),
    Given(Arc<FileKeys>),
}

/// Keys that cannot be used at start.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct EncryptionKeysError {
    setting: &'static str,
    problem: String,
}

impl EncryptionKeys {
    /// Reads what `config` names; none where it names nothing.
    ///
    /// # Errors
    /// [`EncryptionKeysError`].
    pub(crate) fn open(config: &Config) -> Result<Option<Self>, EncryptionKeysError> {
        let source = match (&config.keys_file, &config.keys) {
            (Some(path), _) => Some(Self::file(path)),
            (None, Some(list)) => Some(Self::given(list.expose())),
            (None, None) => None,
        };
        Ok(source.transpose()?.map(Self))
    }

    fn file(path: &Path) -> Result<KeySource, EncryptionKeysError> {
        let parse = |files: &[Vec<u8>]| {
            let text = std::str::from_utf8(&files[0]).map_err(|e| format!("is no UTF-8: {e}"))?;
            FileKeys::parse(text)
        };
        let failed = |problem| EncryptionKeysError { setting: "encryption.keys_file", problem };
        ReloadableFiles::open(&[path], parse).map(|file| KeySource::File(Arc::new(file))).map_err(failed)
    }

    fn given(list: &str) -> Result<KeySource, EncryptionKeysError> {
        let failed = |problem| EncryptionKeysError { setting: "encryption.keys", problem };
        FileKeys::parse_list(list).map(|keys| KeySource::Given(Arc::new(keys))).map_err(failed)
    }

    pub(crate) fn reload(&self) {
        if let KeySource::File(file) = &self.0 {
            file.reload();
        }
    }

    fn keys(&self) -> Arc<FileKeys> {
        match &self.0 {
            KeySource::File(file) => file.get(),
            KeySource::Given(keys) => Arc::clone(keys),
        }
    }
}

#[async_trait]
impl KeyService for EncryptionKeys {
    fn current(&self, tenant: &Name) -> Option<Name> {
        self.keys().current(tenant)
    }

    async fn wrap(
        &self,
        tenant: &Name,
        id: &Name,
        key: &[u8; 32],
        context: &[u8],
    ) -> Result<Vec<u8>, KeyServiceError> {
        self.keys().wrap(tenant, id, key, context).await
    }

    async fn unwrap(
        &self,
        tenant: &Name,
        id: &Name,
        wrapped: &[u8],
        context: &[u8],
    ) -> Result<KeyBytes, KeyServiceError> {
        self.keys().unwrap(tenant, id, wrapped, context).await
    }
}
