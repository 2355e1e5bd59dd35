//! Collects the configuration layers: a file, the environment, flags.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{Config, ConfigError, Mistake, SETTINGS, settings::find};
use crate::toml_error;

/// Sources of settings.
#[derive(Clone, Default)]
pub struct Layers {
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// Environment variables; only `KVASIR_*` and `AWS_*` are read.
    pub env: Vec<(String, String)>,
    /// Flags, as (`section.key`, value).
    pub flags: Vec<(String, String)>,
}

/// Without the values: some are secrets.
impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            |given: &[(String, String)]| given.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let (env, flags) = (names(&self.env), names(&self.flags));
        f.debug_struct("Layers").field("file", &self.file).field("env", &env).field("flags", &flags).finish()
    }
}

impl Layers {
    /// The environment of this process and no flags.
    pub fn from_process() -> Self {
        // Ignore variables that are not UTF-8: none of ours are.
        let env =
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        let env: Vec<_> = env.collect();
        let file = env.iter().find(|(name, _)| name == "KVASIR_CONFIG").map(|(_, path)| path.into());
        Self { file, env, ..Self::default() }
    }

    /// Adds flags, as (`section.key`, value); later ones override earlier ones.
    #[must_use]
    pub fn with_flags<'a>(mut self, flags: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.flags.extend(flags.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
        self
    }

    /// Applies the layers to the defaults.
    ///
    /// # Errors
    /// [`ConfigError`] with every mistake in every layer.
    pub fn load(self) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        let mut mistakes = Vec::new();
        aws(&mut config, &self.env);
        if let Some(path) = &self.file {
            file(&mut config, path, &mut mistakes);
        }
        for (name, value) in &self.env {
            variable(&mut config, name, value, &mut mistakes);
        }
        for (key, value) in &self.flags {
            set(&mut config, key, value, &format!("--{key}"), &mut mistakes);
        }
        config.check(&mut mistakes);
        if mistakes.is_empty() { Ok(config) } else { Err(ConfigError { mistakes }) }
    }
}

fn set(config: &mut Config, key: &str, value: &str, place: &str, mistakes: &mut Vec<Mistake>) {
    let applied = match find(key) {
        Some(setting) => setting.apply(config, value),
        None => Err(match nearest(key) {
            Some(near) => format!("is not a setting; did you mean {near}?"),
            None => "is not a setting".to_owned(),
        }),
    };
    if let Err(problem) = applied {
        mistakes.push(Mistake::new(place, &problem));
    }
}

/// The setting that was probably meant: the same key in another section, or one with few different letters.
fn nearest(key: &str) -> Option<&'static str> {
    let name = key.rsplit('.').next().unwrap_or(key);
    let same_name = SETTINGS.iter().find(|s| s.name() == name);
    let close = SETTINGS.iter().map(|s| (edits(key, s.key), s)).filter(|(edits, _)| *edits <= 3);
    let near = || close.min_by_key(|(edits, _)| *edits).map(|(_, s)| s);
    same_name.or_else(near).map(|s| s.key)
}

/// Edit distance: letters to insert, delete or replace.
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

fn file(config: &mut Config, path: &Path, mistakes: &mut Vec<Mistake>) {
    let place = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => file_text(config, &place, &text, mistakes),
        Err(error) => mistakes.push(Mistake::new(&place, &format!("cannot be read: {error}"))),
    }
}

fn file_text(config: &mut Config, place: &str, text: &str, mistakes: &mut Vec<Mistake>) {
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(error) => {
            let problem = format!("is not valid TOML: {}", toml_error::describe(text, &error));
            return mistakes.push(Mistake::new(place, &problem));
        }
    };
    for (section, value) in table {
        let toml::Value::Table(settings) = value else {
            mistakes.push(Mistake::new(
                &format!("{place}: {section}"),
                "is not a section; settings belong in [section]s",
            ));
            continue;
        };
        for (name, value) in settings {
            let key = format!("{section}.{name}");
            let text = match value {
                toml::Value::String(text) => text,
                other @ (toml::Value::Integer(_) | toml::Value::Boolean(_)) => other.to_string(),
                _ => {
                    mistakes.push(Mistake::new(
                        &format!("{place}: {key}"),
                        "must be a string, number or boolean",
                    ));
                    continue;
                }
            };
            set(config, &key, &text, &format!("{place}: {key}"), mistakes);
        }
    }
}

fn variable(config: &mut Config, name: &str, value: &str, mistakes: &mut Vec<Mistake>) {
    let Some(rest) = name.strip_prefix("KVASIR_") else { return };
    // Test switches, and variables that Kubernetes sets for a service named kvasir.
    let foreign = rest.starts_with("TEST_")
        || rest.starts_with("REQUIRE_")
        || rest == "CONFIG"
        // Belong to the client.
        || rest == "TOKEN"
        || rest == "ZONE"
        || rest == "PORT"
        || rest.ends_with("_PORT")
        || ["SERVICE_HOST", "SERVICE_PORT", "PORT_"].iter().any(|part| rest.contains(part));
    if foreign {
        return;
    }
    match SETTINGS.iter().find(|setting| setting.variable() == name) {
        Some(setting) => set(config, setting.key, value, name, mistakes),
        None => {
            let near = nearest(&rest.to_lowercase().replacen('_', ".", 1));
            let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            mistakes.push(Mistake::new(name, &format!("does not name a setting{hint}")));
        }
    }
}

/// The usual variables of AWS tools. Those without a setting are read by the store's own builder.
fn aws(config: &mut Config, env: &[(String, String)]) {
    let value = |names: &[&str]| {
        let named =
            |name: &&str| env.iter().find(|(n, v)| n == name && !v.is_empty()).map(|(_, v)| v.clone());
        names.iter().find_map(named)
    };
    config.store.endpoint = value(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]);
    config.store.region = value(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
    config.store.access_key_id = value(&["AWS_ACCESS_KEY_ID"]);
    config.store.secret_access_key = value(&["AWS_SECRET_ACCESS_KEY"]).map(Into::into);
    config.store.session_token = value(&["AWS_SESSION_TOKEN"]).map(Into::into);
    let is_option = |name: &str| name.starts_with("AWS_") && !name.contains("ENDPOINT");
    let options = env.iter().filter(|(name, value)| is_option(name) && !value.is_empty());
    config.store.options = options.map(|(name, value)| (name.to_lowercase(), value.clone().into())).collect();
}

/// A file's settings must print and parse to the same values.
#[cfg(any(test, fuzzing))]
pub fn fuzz_file(text: &str) {
    let load = |text: &str| {
        let (mut config, mut mistakes) = (Config::default(), Vec::new());
        file_text(&mut config, "file", text, &mut mistakes);
        config.check(&mut mistakes);
        mistakes.is_empty().then(|| config.to_toml()).ok_or(mistakes)
    };
    if let Ok(printed) = load(text) {
        assert_eq!(load(&printed).as_ref(), Ok(&printed));
    }
}
