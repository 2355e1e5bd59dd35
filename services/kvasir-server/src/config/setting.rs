//! The definition of a setting: a name, a meaning, and how its value is parsed and printed.

use super::Config;

/// One setting.
pub struct Setting {
    /// `section.key`.
    pub key: &'static str,
    /// One line: what it does.
    pub help: &'static str,
    /// An example as TOML, for settings without a default.
    pub(super) example: &'static str,
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
    pub(super) get: fn(&Config) -> Option<String>,
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Setting({})", self.key)
    }
}

impl Setting {
    /// The section.
    pub fn section(&self) -> &'static str {
        self.key.split('.').next().unwrap_or_default()
    }

    /// The name within its section.
    pub fn name(&self) -> &'static str {
        self.key.split_once('.').map_or(self.key, |(_, name)| name)
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("KVASIR_{}", self.key.to_uppercase().replace('.', "_"))
    }

    pub(super) fn apply(&self, config: &mut Config, text: &str) -> Result<(), String> {
        (self.set)(config, text)
    }
}
