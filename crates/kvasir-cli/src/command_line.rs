//! Parses command lines. Secrets come from variables: other users of the host can see command lines.

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, parser::ValueSource};

use crate::error::{CliError, CliResult, Exit};

/// Ids of the arguments that are secrets, and the variables to set instead.
pub(crate) const SECRETS: [(&str, &str); 5] = [
    ("token_from_environment", "KVASIR_TOKEN"),
    ("secret", "AWS_SECRET_ACCESS_KEY"),
    ("store.secret_access_key", "KVASIR_STORE_SECRET_ACCESS_KEY"),
    ("store.session_token", "KVASIR_STORE_SESSION_TOKEN"),
    ("encryption.keys", "KVASIR_ENCRYPTION_KEYS"),
];

/// Parses the command line of this process. Ends the process if it is wrong.
///
/// # Errors
/// A usage error if a secret was typed as a flag.
pub fn parse<A: Parser>() -> CliResult<A> {
    let matches = <A as CommandFactory>::command().get_matches();
    if let Some(variable) = typed_secret(&matches) {
        let advice =
            format!("Set the variable {variable} instead: other users of the host can see command lines.");
        return Err(CliError::new(Exit::Usage, "a secret is not taken from the command line", advice));
    }
    Ok(<A as FromArgMatches>::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

/// The variable of a secret that was typed as a flag.
fn typed_secret(matches: &ArgMatches) -> Option<&'static str> {
    // In debug builds, `value_source` panics for an argument that the command does not have.
    let is_typed = |id: &str| {
        matches.try_contains_id(id).unwrap_or(false)
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let found = SECRETS.iter().find(|(id, _)| is_typed(id)).map(|(_, variable)| *variable);
    found.or_else(|| typed_secret(matches.subcommand()?.1))
}
