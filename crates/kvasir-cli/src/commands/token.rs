//! `kvasir token`: a credential for the tenants file.

use clap::Args;
use kvasir_api::Role;
use kvasir_server::NewToken;
use kvasir_types::Name;
use serde_json::json;

use crate::{error::CliResult, output};

/// Arguments of `kvasir token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArguments {
    /// Whose it is.
    #[arg(long)]
    tenant: Name,
    /// What it allows: read, write, admin or operator.
    #[arg(long)]
    role: Role,
    /// What the audit log calls it.
    #[arg(long, default_value = "token")]
    name: Name,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Makes it; nothing is written anywhere but to stdout.
pub(crate) fn run(arguments: &TokenArguments) -> CliResult {
    let TokenArguments { tenant, role, name, json } = arguments;
    let NewToken { token, entry } = NewToken::generate(name.as_str(), tenant, *role);
    if *json {
        return output::print_json(&json!({ "token": token, "entry": entry }));
    }
    output::print(&format!("# The token, for whoever calls; it is kept nowhere:\n# {token}\n\n{entry}"))
}
