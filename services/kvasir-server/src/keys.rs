//! Keys of encryption at rest: from a file that may change while the service runs, or given outright.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use kvasir_storage::seal::{FileKeys, KeyBytes, KeyService, KeyServiceError};
use kvasir_types::Name;

use crate::{Config, reload::Reloaded};

/// The keys, as of their last usable state.
#[derive(Debug, Clone)]
pub(crate) struct Keys(Source);

#[derive(Debug, Clone)]
enum Source {
    File(Arc<Reloaded<FileKeys>>),
    Given(Arc<FileKeys>),
}

/// Keys that cannot be used at start.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct KeysError {
    setting: &'static str,
    problem: String,
}

impl Keys {
    /// Reads what `config` names; none where it names nothing.
    ///
    /// # Errors
    /// [`KeysError`].
    pub(crate) fn open(config: &Config) -> Result<Option<Self>, KeysError> {
        let source = match (&config.keys_file, &config.keys) {
            (Some(path), _) => Some(Self::file(path)),
            (None, Some(list)) => Some(Self::given(list.expose())),
            (None, None) => None,
        };
        Ok(source.transpose()?.map(Self))
    }

    fn file(path: &Path) -> Result<Source, KeysError> {
        let parse = |files: &[Vec<u8>]| {
            let text = std::str::from_utf8(&files[0]).map_err(|e| format!("is no UTF-8: {e}"))?;
            FileKeys::parse(text)
        };
        let failed = |problem| KeysError { setting: "encryption.keys_file", problem };
        Reloaded::open(&[path], parse).map(|file| Source::File(Arc::new(file))).map_err(failed)
    }

    fn given(list: &str) -> Result<Source, KeysError> {
        let failed = |problem| KeysError { setting: "encryption.keys", problem };
        FileKeys::parse_list(list).map(|keys| Source::Given(Arc::new(keys))).map_err(failed)
    }

    pub(crate) fn reload(&self) {
        if let Source::File(file) = &self.0 {
            file.refresh();
        }
    }

    fn keys(&self) -> Arc<FileKeys> {
        match &self.0 {
            Source::File(file) => file.get(),
            Source::Given(keys) => Arc::clone(keys),
        }
    }
}

#[async_trait]
impl KeyService for Keys {
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
