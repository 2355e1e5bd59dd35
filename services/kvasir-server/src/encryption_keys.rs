//! Keys of encryption at rest: from a file that is reloaded when it changes, or inline.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use kvasir_store::seal::{FileKeys, KeyBytes, KeyService, KeyServiceError};
use kvasir_types::Name;

use crate::{config::Config, limits, reload::ReloadableFiles};

/// The keys of the last usable state.
#[derive(Debug, Clone)]
pub(crate) struct EncryptionKeys(KeySource);

#[derive(Debug, Clone)]
enum KeySource {
    File(Arc<ReloadableFiles<FileKeys>>),
    Given(Arc<FileKeys>),
}

impl EncryptionKeys {
    /// Reads the keys that `config` names; `None` if it names none.
    ///
    /// # Errors
    /// The setting and what is wrong with its keys.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>, String> {
        let source = match (&config.keys_file, &config.keys) {
            // Whom the ignored one names would not be sealed.
            (Some(_), Some(_)) => {
                return Err("encryption.keys_file and encryption.keys are both set; give one".to_owned());
            }
            (Some(path), None) => Some(Self::file(path)),
            (None, Some(list)) => Some(Self::given(list.expose())),
            (None, None) => None,
        };
        Ok(source.transpose()?.map(Self))
    }

    fn file(path: &Path) -> Result<KeySource, String> {
        let parse = |files: &[Vec<u8>]| {
            let text = std::str::from_utf8(&files[0]).map_err(|e| format!("is not UTF-8: {e}"))?;
            FileKeys::parse(text)
        };
        let failed = |problem| format!("encryption.keys_file: {problem}");
        ReloadableFiles::open(&[path], parse).map(|file| KeySource::File(Arc::new(file))).map_err(failed)
    }

    fn given(list: &str) -> Result<KeySource, String> {
        let failed = |problem| format!("encryption.keys: {problem}");
        FileKeys::parse_list(list).map(|keys| KeySource::Given(Arc::new(keys))).map_err(failed)
    }

    /// Reloads the file. Rejects a change that would store a tenant's chunks unencrypted from now on.
    pub(crate) fn reload(&self) {
        if let KeySource::File(file) = &self.0
            && file.reload_if(FileKeys::may_follow)
        {
            self.log_tenants();
        }
    }

    pub(crate) fn has_rejected_file(&self) -> bool {
        matches!(&self.0, KeySource::File(file) if file.is_rejected())
    }

    /// Logs which tenants' chunks are encrypted: a misspelled name shows nowhere else.
    pub(crate) fn log_tenants(&self) {
        let keys = self.keys();
        let tenants = keys.tenants();
        let named = &tenants[..tenants.len().min(limits::SEALED_TENANTS_LOGGED_MAX)];
        tracing::info!(count = tenants.len(), tenants = ?named, "chunks of these tenants are encrypted at rest");
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str, id: &str) -> String {
        format!("[[key]]\ntenant = \"{tenant}\"\nid = \"{id}\"\nkey = \"{}\"\n", "1".repeat(64))
    }

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn a_file_without_a_key_is_refused_at_start() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("keys.toml");
        let config = Config { keys_file: Some(path.clone()), ..Config::default() };
        for text in ["", "\n# nothing yet\n", "key = []"] {
            std::fs::write(&path, text).expect("writes");
            let error = EncryptionKeys::open(&config).expect_err("nothing would be sealed");
            assert!(error.contains("encryption.keys_file") && error.contains("[[key]]"), "{error}");
        }
    }

    #[test]
    fn keys_in_a_file_and_inline_are_refused_instead_of_one_of_them_ignored() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("keys.toml");
        std::fs::write(&path, key("a", "one")).expect("writes");
        let file = Config { keys_file: Some(path), ..Config::default() };
        let inline = Config { keys: Some(format!("b:one:{}", "1".repeat(64)).into()), ..Config::default() };
        let both = Config { keys: inline.keys.clone(), ..file.clone() };
        let error = EncryptionKeys::open(&both).expect_err("b would not be sealed");
        assert!(error.contains("encryption.keys_file") && error.contains("both"), "{error}");
        for (config, tenant) in [(file, "a"), (inline, "b")] {
            let keys = EncryptionKeys::open(&config).expect("opens").expect("keys");
            assert_eq!(keys.current(&name(tenant)), Some(name("one")));
        }
    }

    #[test]
    fn a_reload_that_takes_a_tenants_last_key_away_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("keys.toml");
        let write = |text: &str| std::fs::write(&path, text).expect("writes");
        write(&(key("a", "one") + &key("b", "one")));
        let config = Config { keys_file: Some(path.clone()), ..Config::default() };
        let keys = EncryptionKeys::open(&config).expect("opens").expect("keys");
        // Emptied, one tenant removed, its name misspelled, another tenant's keys for it.
        for text in [String::new(), key("a", "one"), key("a", "one") + &key("bb", "one"), key("*", "one")] {
            write(&text);
            keys.reload();
            for tenant in ["a", "b"] {
                assert_eq!(keys.current(&name(tenant)), Some(name("one")), "{tenant} after {text:?}");
            }
            assert_eq!(keys.current(&name("c")), None, "nothing of {text:?} is taken in");
        }
        // A rotation: a new key next to the old one, then without it; and one more tenant.
        for text in
            [key("a", "one") + &key("a", "two") + &key("b", "one"), key("a", "two") + &key("b", "one")]
        {
            write(&text);
            keys.reload();
            assert_eq!(keys.current(&name("a")), Some(name("two")));
        }
        write(&(key("a", "two") + &key("b", "one") + &key("c", "one")));
        keys.reload();
        assert_eq!(keys.current(&name("c")), Some(name("one")));
    }
}
