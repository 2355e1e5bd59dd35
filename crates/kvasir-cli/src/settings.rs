//! The service's settings as flags: `--config FILE` and one flag for each setting, so that help and
//! completions include them. Secrets have no flag.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, error::Error};
use kvasir_server::{Config, Layers, SETTINGS};

use crate::{
    command_line::SECRETS,
    error::{CliError, CliResult, Exit},
};

const CONFIG: &str = "config";
const LISTEN: &str = "listen";

/// Settings of the service from the command line.
#[derive(Debug, Clone, Default)]
pub(crate) struct SettingsArguments {
    file: Option<PathBuf>,
    /// (`section.key`, value) in the order of the settings table.
    flags: Vec<(String, String)>,
}

impl SettingsArguments {
    /// The configuration from these flags, the environment and the file.
    pub(crate) fn config(&self) -> CliResult<Config> {
        let mut layers = Layers::from_process();
        layers.file = self.file.clone().or(layers.file);
        layers.flags.clone_from(&self.flags);
        layers.load().map_err(|error| {
            let advice = "Correct them and start again. `kvasir config --help` describes the settings.";
            CliError::new(Exit::Config, error, advice)
        })
    }

    /// Rejects settings if the command runs through a service, which has its own.
    pub(crate) fn only_with_direct(&self) -> CliResult {
        if self.file.is_none() && self.flags.is_empty() {
            return Ok(());
        }
        let advice = "Add --direct to work on the store itself, or omit the settings.";
        Err(CliError::new(Exit::Usage, "a service uses its own settings", advice))
    }
}

impl Args for SettingsArguments {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE")
            .help("Settings as TOML (also KVASIR_CONFIG)")
            .help_heading(
                "Settings: defaults, AWS_* variables, the file, KVASIR_<SECTION>_<KEY> variables, flags",
            );
        let listen = Arg::new(LISTEN).long(LISTEN).value_name("ADDRESS").help("Short for --server.listen");
        let listen = listen.help_heading("server").overrides_with(LISTEN);
        let mut command = command.arg(config).arg(listen);
        for setting in SETTINGS {
            let arg = Arg::new(setting.key).long(setting.key).value_name("VALUE").help(setting.help);
            // A later flag overrides an earlier one, so that scripts can append theirs.
            let arg = arg.help_heading(setting.section()).overrides_with(setting.key);
            // A secret that is typed is refused, so help does not offer it.
            let is_secret = SECRETS.iter().any(|(id, _)| *id == setting.key);
            command = command.arg(arg.hide_short_help(true).hide(is_secret));
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for SettingsArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let value = |id: &str| matches.get_one::<String>(id).cloned();
        let given = SETTINGS.iter().filter_map(|s| Some((s.key.to_owned(), value(s.key)?)));
        let mut flags: Vec<_> = given.collect();
        flags.extend(value(LISTEN).map(|address| ("server.listen".to_owned(), address)));
        Ok(Self { file: value(CONFIG).map(Into::into), flags })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
