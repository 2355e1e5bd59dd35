//! Settings under former names, and retired values: accepted for one more release, with a warning that names
//! the replacement.

use super::{SETTINGS, Setting, settings::find};

/// A renamed setting.
#[derive(Debug, Clone, Copy)]
pub struct Renamed {
    /// The former `section.key`.
    pub old: &'static str,
    /// The present `section.key`.
    pub new: &'static str,
    /// First release that rejects the former name.
    pub gone_in: &'static str,
}

/// All renamed settings. Remove an entry when its release comes; a test checks this.
#[cfg(not(test))]
pub const RENAMED: &[Renamed] = &[];
/// No setting has been renamed since the first release; the tests use their own entry.
#[cfg(test)]
pub const RENAMED: &[Renamed] = &[Renamed { old: "server.bind", new: "server.listen", gone_in: "999.0.0" }];

impl Renamed {
    /// Advice for a user of the former name.
    pub(super) fn advice(&self) -> String {
        format!("was renamed to {}; {} will reject the old name", self.new, self.gone_in)
    }

    /// The former environment variable.
    fn variable(&self) -> String {
        format!("KVASIR_{}", self.old.to_uppercase().replace('.', "_"))
    }
}

/// The setting with the present or former name `key`, and the entry if it was renamed.
pub(super) fn by_key(key: &str) -> Option<(&'static Setting, Option<Renamed>)> {
    let renamed = || RENAMED.iter().find(|renamed| renamed.old == key);
    find(key).map(|setting| (setting, None)).or_else(|| {
        let renamed = renamed()?;
        Some((find(renamed.new)?, Some(*renamed)))
    })
}

/// Like [`by_key`], by the name of the environment variable.
pub(super) fn by_variable(name: &str) -> Option<&'static str> {
    let now = SETTINGS.iter().find(|setting| setting.variable() == name).map(|setting| setting.key);
    now.or_else(|| RENAMED.iter().find(|renamed| renamed.variable() == name).map(|renamed| renamed.old))
}

/// Values of a setting that the product no longer supports.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetiredValues {
    /// `section.key`.
    key: &'static str,
    /// What the values are called.
    noun: &'static str,
    /// The values.
    values: &'static [&'static str],
    /// The value used instead: the setting's default.
    pub(super) replacement: &'static str,
    /// First release that rejects them.
    gone_in: &'static str,
}

/// Eviction policies that moved to the laboratory.
const RETIRED_POLICIES: &[&str] =
    &["workload", "workload-distribution", "workload-life", "lfu", "fifo", "s3-fifo", "sieve", "gdsf", "ttl"];

/// All retired values. Remove an entry when its release comes; a test checks this.
const RETIRED_VALUES: &[RetiredValues] = &[
    RetiredValues {
        key: "hot.policy",
        noun: "policy",
        values: RETIRED_POLICIES,
        replacement: "adaptive-cost",
        gone_in: "0.2.0",
    },
    RetiredValues {
        key: "gc.eviction",
        noun: "policy",
        values: RETIRED_POLICIES,
        replacement: "adaptive",
        gone_in: "0.2.0",
    },
];

impl RetiredValues {
    /// Advice for a user of such a value.
    pub(super) fn advice(&self, value: &str) -> String {
        let Self { noun, replacement, gone_in, .. } = self;
        format!(
            "{noun} {value} is no longer supported; using {replacement} instead; {gone_in} will reject this value"
        )
    }
}

/// The retired value `value` of the setting `key`, if it is one.
pub(super) fn by_value(key: &str, value: &str) -> Option<&'static RetiredValues> {
    RETIRED_VALUES.iter().find(|retired| retired.key == key && retired.values.contains(&value))
}

#[cfg(test)]
mod tests {
    use kvasir_eviction::PolicyKind;

    use super::*;
    use crate::config::{Config, Layers, Mistake};

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
            assert!(config.warnings.iter().all(|w| w.problem.contains("renamed to server.listen")));
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

    #[test]
    fn retired_values_lead_to_the_default_and_are_dropped_in_time() {
        for retired in RETIRED_VALUES {
            let setting = find(retired.key).expect("a setting");
            let default = (setting.get)(&Config::default()).expect("a default");
            assert_eq!(default, format!("{:?}", retired.replacement), "{retired:?}");
            assert!(numbers(env!("CARGO_PKG_VERSION")) < numbers(retired.gone_in), "{retired:?} has to go");
            for value in retired.values {
                assert!(setting.apply(&mut Config::default(), value).is_err(), "{value} is a value again");
            }
        }
    }

    #[test]
    fn every_layer_takes_a_retired_policy_as_the_default_with_a_warning() {
        for old in RETIRED_POLICIES {
            let file = tempfile::NamedTempFile::new().expect("a file");
            let text = format!(
                "[store]\nurl = \"memory://\"\n[hot]\npolicy = \"{old}\"\n[gc]\neviction = \"{old}\"\n"
            );
            std::fs::write(file.path(), text).expect("written");
            let path = file.path().display().to_string();
            let from_file = Layers { file: Some(file.path().into()), ..Layers::default() };
            let env = ["KVASIR_HOT_POLICY", "KVASIR_GC_EVICTION"];
            let env = env.map(|name| (name.to_owned(), (*old).to_owned())).to_vec();
            let store = [("store.url", "memory://")];
            let from_env = Layers { env, ..Layers::default() }.with_flags(store);
            let flags = [("hot.policy", *old), ("gc.eviction", *old)];
            let from_flags = Layers::default().with_flags(store).with_flags(flags);
            for (layers, hot_place, gc_place) in [
                (from_file, format!("{path}: hot.policy"), format!("{path}: gc.eviction")),
                (from_env, "KVASIR_HOT_POLICY".to_owned(), "KVASIR_GC_EVICTION".to_owned()),
                (from_flags, "--hot.policy".to_owned(), "--gc.eviction".to_owned()),
            ] {
                let config = layers.load().expect("sound");
                assert_eq!(config.hot.policy, PolicyKind::AdaptiveCost);
                assert_eq!(config.gc.policy.eviction, PolicyKind::Adaptive);
                let warning = |place, used| {
                    let problem = format!(
                        "policy {old} is no longer supported; using {used} instead; 0.2.0 will reject this value"
                    );
                    Mistake { place, problem }
                };
                let expected = [warning(hot_place, "adaptive-cost"), warning(gc_place, "adaptive")];
                let mut warnings = config.warnings;
                // A file's sections are read in the order of their names.
                warnings.sort_by_key(|warning| {
                    !warning.place.ends_with("POLICY") && !warning.place.ends_with("policy")
                });
                assert_eq!(warnings, expected);
            }
        }
    }

    #[test]
    fn an_unknown_policy_is_refused_and_a_known_one_is_taken_without_a_warning() {
        let load = |policy| {
            let flags = [("store.url", "memory://"), ("hot.policy", policy), ("gc.eviction", policy)];
            Layers::default().with_flags(flags).load()
        };
        for kind in PolicyKind::ALL {
            let config = load(kind.name()).expect("sound");
            assert_eq!((config.hot.policy, config.gc.policy.eviction), (kind, kind));
            assert_eq!(config.warnings, []);
        }
        let error = load("arc").expect_err("no policy");
        assert_eq!(error.mistakes.len(), 2, "{error}");
        assert!(error.to_string().contains("there are adaptive, adaptive-cost and lru"), "{error}");
    }
}
