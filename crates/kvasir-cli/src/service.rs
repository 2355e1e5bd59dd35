//! What commands that talk to a service share: which one, who calls, and how its errors are told.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use kvasir_client::{BearerToken, Client, ClientConfig, ClientError, KvClient};
use kvasir_codec::{CpuDecoder, CpuEncoder, Profile};
use kvasir_types::{ModelSpec, Name};
use url::Url;

use crate::error::{CliError, CliResult, Exit};

/// Which service, and whose namespace.
#[derive(Debug, Args)]
pub struct ServiceArguments {
    /// Address of the service.
    #[arg(long, default_value = "http://127.0.0.1:7480")]
    pub url: Url,
    /// Namespace: contexts of different namespaces never match.
    #[arg(long, default_value = "default")]
    pub namespace: Name,
    /// Who we are.
    #[command(flatten)]
    pub credential: CredentialArguments,
}

/// The credential for a service that asks for one.
#[derive(Debug, Clone, Args)]
pub struct CredentialArguments {
    /// File with the token; KVASIR_TOKEN otherwise.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with CA certificates (PEM) to trust beside the system's.
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Not a flag: command lines are seen by others.
    #[arg(long, env = "KVASIR_TOKEN", hide = true, hide_env_values = true)]
    pub token_from_environment: Option<String>,
}

/// Connects to a service for one model, with one profile.
pub async fn connect(
    service: &ServiceArguments,
    spec: &Arc<ModelSpec>,
    profile: &Arc<Profile>,
) -> CliResult<KvClient> {
    let wrong_profile =
        |error| CliError::new(Exit::Data, error, "Give a profile of this model with --profile.");
    let encoder = CpuEncoder::new(Arc::clone(spec), Arc::clone(profile)).map_err(wrong_profile)?;
    let decoder = CpuDecoder::new(Arc::clone(spec), Arc::clone(profile)).map_err(wrong_profile)?;
    let client = client(service)?;
    KvClient::new(client, Arc::clone(spec), service.namespace.clone(), Arc::new(encoder), Arc::new(decoder))
        .await
        .map_err(client_error)
}

/// A client of the service, with the credential that is there.
pub fn client(service: &ServiceArguments) -> CliResult<Client> {
    client_at(service.url.clone(), &service.credential)
}

/// A client of an open service at `url`, as those that commands start for themselves are.
pub fn open_client_at(url: Url) -> CliResult<Client> {
    Client::new(url, ClientConfig::default()).map_err(client_error)
}

/// A client of the service at `url`, with the credential that is there.
pub fn client_at(url: Url, credential: &CredentialArguments) -> CliResult<Client> {
    let CredentialArguments { token_file, ca_file, token_from_environment } = credential;
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| {
            let message = format!("{}: {error}", path.display());
            CliError::new(Exit::NoInput, message, "Check the path of --token-file or --ca-file.")
        })
    };
    let token = match (token_file, token_from_environment) {
        (Some(path), _) => Some(String::from_utf8_lossy(&read(path)?).into_owned()),
        (None, text) => text.clone(),
    };
    let token = token.as_deref().map(BearerToken::new).transpose().map_err(client_error)?;
    let ca_certificates = ca_file.as_deref().map(read).transpose()?;
    let config = ClientConfig { token, ca_certificates, ..ClientConfig::default() };
    Client::new(url, config).map_err(client_error)
}

/// The runtime of commands that talk to somebody.
///
/// # Errors
/// An internal error where threads cannot be started.
pub fn runtime() -> CliResult<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::internal)
}

/// Errors of the client, sorted by what the user can do.
#[allow(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
pub fn client_error(error: ClientError) -> CliError {
    let exit = match &error {
        ClientError::Transport(_) | ClientError::Task(_) => Exit::Unavailable,
        ClientError::Api(api) if api.retryable => Exit::Unavailable,
        ClientError::Config { .. } => Exit::Config,
        _ => Exit::Data,
    };
    let remedy = error.remedy();
    let advice = remedy.get(..1).map_or_else(String::new, |first| first.to_uppercase() + &remedy[1..] + ".");
    CliError::new(exit, error, advice)
}
