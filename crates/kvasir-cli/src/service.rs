//! What commands that talk to a service share: address, credential, and how errors are reported.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use kvasir_api::ErrorCode;
use kvasir_client::{
    Builder, Error, Kvasir, QualityFloor, Session,
    rest::{BearerToken, Client, ClientConfig},
};
use kvasir_types::{ModelSpec, Name, Quality};
use url::Url;

use crate::error::{CliError, CliResult, Exit};

/// The service's address.
#[derive(Debug, Clone, Args)]
pub struct AddressArguments {
    /// Address of the service.
    #[arg(long, default_value = "http://127.0.0.1:7480")]
    pub url: Url,
    /// The credential.
    #[command(flatten)]
    pub credential: CredentialArguments,
}

/// The service's address, and a namespace.
#[derive(Debug, Args)]
pub struct ServiceArguments {
    /// The service.
    #[command(flatten)]
    pub address: AddressArguments,
    /// Namespace: contexts of different namespaces never match.
    #[arg(long, default_value = "default")]
    pub namespace: Name,
}

/// The credential, if the service requires one.
#[derive(Debug, Clone, Args)]
pub struct CredentialArguments {
    /// File with the token. Default: the variable KVASIR_TOKEN.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with CA certificates (PEM) to trust in addition to the system's.
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Refused as a flag by [`crate::command_line::parse`].
    #[arg(long, env = "KVASIR_TOKEN", hide = true, hide_env_values = true)]
    pub token_from_environment: Option<String>,
}

/// A connection to a service for one model.
pub fn connection(service: &ServiceArguments, spec: &Arc<ModelSpec>) -> CliResult<Builder> {
    let ServiceArguments { address, namespace } = service;
    let rest = client_config(&address.credential)?;
    let builder = Kvasir::builder(address.url.as_str()).rest(rest).namespace(namespace.as_str());
    Ok(builder.model(Arc::clone(spec)))
}

/// Connects to a service for one model, to read chunks stored with any of its profiles and at least as good
/// as `floor`.
pub async fn connect(
    service: &ServiceArguments,
    spec: &Arc<ModelSpec>,
    floor: QualityFloor,
) -> CliResult<Kvasir> {
    let kvasir = match connection(service, spec)?.quality(floor).connect().await {
        // A cache whose type has no exact level has none to read. Any other mistake is one at each floor.
        Err(Error::Config { what }) if floor == QualityFloor::Named(Quality::Exact) => {
            connection(service, spec)?.connect().await.map_err(client_error)?;
            let message = format!("nothing is stored in quality exact: {what}");
            return Err(CliError::new(Exit::Nothing, message, ""));
        }
        connected => connected.map_err(client_error)?,
    };
    // A lookup ends before the first chunk whose profile is not loaded here.
    kvasir.preload_profiles().await.map_err(client_error)?;
    Ok(kvasir)
}

/// Looks a token sequence up. A command that only reads reports why a lookup failed.
pub async fn look_up(kvasir: &Kvasir, tokens: &[u32]) -> CliResult<Session> {
    let mut session = kvasir.session(tokens).without_lookup().await;
    session.lookup().await.map_err(client_error)?;
    Ok(session)
}

/// A client of the service, with the given credential.
pub fn client(service: &AddressArguments) -> CliResult<Client> {
    Client::new(service.url.clone(), client_config(&service.credential)?).map_err(client_error)
}

/// The client's configuration, with the given credential.
pub fn client_config(credential: &CredentialArguments) -> CliResult<ClientConfig> {
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
    Ok(ClientConfig { token, ca_certificates, ..ClientConfig::default() })
}

/// The runtime of commands that talk to a service.
///
/// # Errors
/// An internal error if threads cannot be started.
pub fn runtime() -> CliResult<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::internal)
}

/// Whether the cause is who asks, not what is asked.
const fn is_refusal(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Unauthorized | ErrorCode::Forbidden | ErrorCode::StorageQuota)
}

/// Errors of the client, classified by what the user can do.
#[allow(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
pub fn client_error(error: Error) -> CliError {
    let exit = match &error {
        Error::Transport(_) | Error::Slow { .. } | Error::Task(_) => Exit::Unavailable,
        Error::Api(api) if api.retryable => Exit::Unavailable,
        Error::Api(api) if api.known.is_some_and(is_refusal) => Exit::Refused,
        Error::Config { .. } => Exit::Config,
        Error::Profile(_) => {
            return CliError::new(Exit::Data, error, "Give a profile of this model with --profile.");
        }
        _ => Exit::Data,
    };
    let remedy = error.remedy();
    let advice = remedy.get(..1).map_or_else(String::new, |first| first.to_uppercase() + &remedy[1..] + ".");
    CliError::new(exit, error, advice)
}
