//! `kvasir token`: generates a credential for the tenants file.

use clap::Args;
use kvasir_api::Role;
use kvasir_server::{NewAccessKey, NewToken};
use kvasir_types::Name;
use serde_json::json;

use crate::{error::CliResult, output, progress::note};

/// Arguments of `kvasir token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArguments {
    /// Tenant that owns the credential.
    #[arg(long)]
    tenant: Name,
    /// Permissions: read, write, admin or operator.
    #[arg(long)]
    role: Role,
    /// Name in the audit log.
    #[arg(long, default_value = "token")]
    name: Name,
    /// Generate an access key for S3 clients instead of a bearer token.
    #[arg(long)]
    s3: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Generates the credential. The entry is on stdout and the secret on stderr, so that
/// `2> ci.token >> tenants.toml` puts each where it belongs. The secret is last: without its entry it is of no use.
pub(crate) fn run(arguments: &TokenArguments) -> CliResult {
    let TokenArguments { tenant, role, name, s3, json } = arguments;
    if *s3 {
        let NewAccessKey { id, secret, entry } = NewAccessKey::generate(name.as_str(), tenant, *role);
        if *json {
            return output::print_json(&json!({ "id": id, "secret": secret, "entry": entry }));
        }
        output::print(&entry)?;
        note(&format!("AWS_ACCESS_KEY_ID={id}\nAWS_SECRET_ACCESS_KEY={secret}"));
        return Ok(());
    }
    let NewToken { token, entry } = NewToken::generate(name.as_str(), tenant, *role);
    if *json {
        return output::print_json(&json!({ "token": token, "entry": entry }));
    }
    output::print(&entry)?;
    note(&token);
    Ok(())
}
