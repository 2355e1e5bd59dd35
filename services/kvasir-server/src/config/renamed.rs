//! Settings under names of earlier releases: taken for one release more, with a warning that says the new name.

use super::{SETTINGS, Setting, settings::find};

/// A setting that had another name.
#[derive(Debug, Clone, Copy)]
pub struct Renamed {
    /// `section.key` as it was.
    pub old: &'static str,
    /// `section.key` as it is.
    pub new: &'static str,
    /// First release that does not know the old name any more.
    pub gone_in: &'static str,
}

/// All of them. An entry goes when its release comes; a test says when.
#[cfg(not(test))]
pub const RENAMED: &[Renamed] = &[];
/// Nothing has been renamed since the first release: the tests have an entry of their own.
#[cfg(test)]
pub const RENAMED: &[Renamed] = &[Renamed { old: "server.bind", new: "server.listen", gone_in: "999.0.0" }];

impl Renamed {
    /// What somebody who uses the old name is told.
    pub(super) fn advice(&self) -> String {
        format!("is called {} now; {} will not know this name any more", self.new, self.gone_in)
    }

    /// The environment variable as it was.
    fn variable(&self) -> String {
        format!("KVASIR_{}", self.old.to_uppercase().replace('.', "_"))
    }
}

/// The setting that is or was called `key`, and what is to be said about the name.
pub(super) fn by_key(key: &str) -> Option<(&'static Setting, Option<Renamed>)> {
    let renamed = || RENAMED.iter().find(|renamed| renamed.old == key);
    find(key).map(|setting| (setting, None)).or_else(|| {
        let renamed = renamed()?;
        Some((find(renamed.new)?, Some(*renamed)))
    })
}

/// As [`by_key`], by the name of the environment variable.
pub(super) fn by_variable(name: &str) -> Option<&'static str> {
    let now = SETTINGS.iter().find(|setting| setting.variable() == name).map(|setting| setting.key);
    now.or_else(|| RENAMED.iter().find(|renamed| renamed.variable() == name).map(|renamed| renamed.old))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;

    fn numbers(version: &str) -> Vec<u32> {
        version.split('.').map(|part| part.parse().expect("numbers")).collect()
    }

    #[test]
    fn old_names_lead_to_settings_and_are_dropped_in_time() {
        for renamed in RENAMED {
            assert!(find(renamed.new).is_some(), "{renamed:?} leads nowhere");
            assert!(find(renamed.old).is_none(), "{renamed:?} hides a setting");
            assert!(numbers(env!("CARGO_PKG_VERSION")) < numbers(renamed.gone_in), "{renamed:?} has to go");
        }
    }

    #[test]
    fn every_layer_takes_an_old_name_with_a_warning() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "[server]\nbind = \"127.0.0.1:1\"\n[store]\nurl = \"memory://\"\n")
            .expect("written");
        let variable = ("KVASIR_SERVER_BIND".to_owned(), "127.0.0.1:2".to_owned());
        let layers = Layers { file: Some(file.path().into()), ..Layers::default() };
        let mut ports = Vec::new();
        for layers in [
            layers.clone(),
            Layers { env: vec![variable.clone()], ..layers.clone() },
            Layers { env: vec![variable], ..layers }.with_flags([("server.bind", "127.0.0.1:3")]),
        ] {
            let config = layers.load().expect("sound");
            ports.push(config.server.listen.port());
            assert_eq!(config.warnings.len(), ports.len(), "one a layer: {:?}", config.warnings);
            assert!(config.warnings.iter().all(|w| w.problem.contains("server.listen now")));
            assert!(config.to_toml().contains("listen = ") && !config.to_toml().contains("bind"));
        }
        assert_eq!(ports, [1, 2, 3]);
    }

    #[test]
    fn a_bad_value_under_an_old_name_is_a_mistake_under_that_name() {
        let flags = [("server.bind", "here"), ("store.url", "memory://")];
        let error = Layers::default().with_flags(flags).load().expect_err("no address");
        assert!(error.to_string().contains("--server.bind"), "{error}");
    }
}
