//! `kvasir-lab engine serve`: the reference engine as a process that speaks OpenAI's completions API.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, Subcommand};
use kvasir_client::{Kvasir, QualityFloor};
use kvasir_engine::{
    Model, calibrate, openai,
    serving::{Engine, EngineConfig, LoadPolicy, RemoteUse, SchedulerLimits},
};

use kvasir_server::shutdown_signal;
use kvasir_types::{CHUNK_TOKENS_DEFAULT, CHUNK_TOKENS_STEP, Level, Name};
use tokio::net::TcpListener;
use url::Url;

use kvasir_cli::{
    demo::TALE,
    error::{CliError, CliResult, Exit},
    inputs::profile,
    progress::note,
    service::{CredentialArguments, client_config, runtime},
    shipped::engine_error,
};

use super::model::model;

/// Tokens of the text that the engine times its prefill on before it serves.
const CALIBRATION_TOKENS: usize = 256;

/// The engine's commands.
#[derive(Debug, Subcommand)]
pub(crate) enum EngineCommand {
    /// Serve `/v1/completions`, with the KV of prompts loaded from Kvasir and stored there.
    Serve(EngineServeArguments),
}

/// Arguments of `kvasir-lab engine serve`.
#[derive(Debug, Args)]
pub(crate) struct EngineServeArguments {
    /// Address to listen on; with port 0 a free port is used and printed.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// `kvasir-tiny`, or a folder with a Hugging Face Llama model.
    #[arg(long, value_name = "NAME|DIR", default_value = "kvasir-tiny")]
    model: String,
    /// The Kvasir service; without it nothing is loaded or stored.
    #[arg(long, value_name = "URL")]
    kvasir: Option<Url>,
    /// Namespace there.
    #[arg(long, default_value = "default")]
    namespace: Name,
    /// The credential for the service.
    #[command(flatten)]
    credential: CredentialArguments,
    /// Profile to store with; by default the one that ships with kvasir-tiny.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Tokens per chunk: a multiple of 256 [default: 1536, or 256 for contexts shorter than four chunks].
    #[arg(long, value_name = "N")]
    chunk_tokens: Option<usize>,
    /// Time to first token that loads aim at, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    slo_ms: u64,
    /// Always load this level, however long it takes; without it, the level adapts to the SLO.
    #[arg(long, value_name = "N")]
    level: Option<u8>,
    /// Load, but store nothing.
    #[arg(long)]
    no_store: bool,
    /// Memory for KV, in full contexts of the model.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    contexts: u16,
    /// Sequences that run at the same time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    sequences: u16,
    /// Requests that may wait in addition; further ones are answered with 429.
    #[arg(long, value_name = "N", default_value_t = 64)]
    waiting: u16,
}

/// Runs the command.
pub(crate) fn run(command: &EngineCommand) -> CliResult {
    let EngineCommand::Serve(arguments) = command;
    let model = Arc::new(model(&arguments.model)?);
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .try_init()
        .map_err(CliError::internal)?;
    runtime()?.block_on(serve(arguments, model))
}

async fn serve(arguments: &EngineServeArguments, model: Arc<Model>) -> CliResult {
    let remote = match &arguments.kvasir {
        Some(url) => Some(connect(arguments, url, &model).await?),
        None => None,
    };
    let limits = SchedulerLimits {
        sequences: arguments.sequences.into(),
        waiting: arguments.waiting.into(),
        ..SchedulerLimits::default()
    };
    let config = EngineConfig { limits, ..EngineConfig::for_contexts(&model, arguments.contexts.into()) };
    let engine = Engine::start(model, config, remote).map_err(engine_error)?;
    let listener = TcpListener::bind(arguments.listen).await.map_err(|error| {
        let message = format!("cannot listen on {}: {error}", arguments.listen);
        CliError::new(Exit::Unavailable, message, "Name another address with --listen.")
    })?;
    let address = listener.local_addr().map_err(CliError::internal)?;
    note(&format!("engine ready at http://{address}"));
    openai::serve(engine, &arguments.model, listener, shutdown_signal()).await.map_err(CliError::unavailable)
}

async fn connect(
    arguments: &EngineServeArguments,
    url: &Url,
    model: &Arc<Model>,
) -> CliResult<(Kvasir, RemoteUse)> {
    let profile = profile(arguments.profile.as_deref())?;
    if arguments.level.is_some_and(|level| usize::from(level) >= profile.level_count()) {
        let message = format!("the profile has levels 0 to {}", profile.level_count() - 1);
        return Err(CliError::new(Exit::Data, message, "Give one of them with --level."));
    }
    let mut tokens = model.tokenizer().encode(TALE).map_err(engine_error)?;
    tokens.truncate(CALIBRATION_TOKENS.min(model.config().context));
    let recompute = calibrate(model, &tokens).map_err(engine_error)?;
    let chunk_tokens =
        arguments.chunk_tokens.unwrap_or(if model.config().context < 4 * CHUNK_TOKENS_DEFAULT {
            CHUNK_TOKENS_STEP
        } else {
            CHUNK_TOKENS_DEFAULT
        });
    let builder = Kvasir::builder(url.as_str())
        .rest(client_config(&arguments.credential)?)
        .model(Arc::clone(model.spec()))
        .profile(profile)
        // Of any level: the shipped profile is not `transparent`.
        .quality(QualityFloor::Adaptive)
        .namespace(arguments.namespace.as_str())
        .chunk_tokens(chunk_tokens)
        .recompute_model(recompute);
    let kvasir = builder.connect().await.map_err(|error| {
        CliError::new(
            Exit::Unavailable,
            error,
            "Check the address of --kvasir, and that --profile is of this model.",
        )
    })?;
    let how = RemoteUse {
        slo: Duration::from_millis(arguments.slo_ms),
        policy: arguments.level.map_or(LoadPolicy::Progressive, |level| LoadPolicy::Level(Level(level))),
        store: !arguments.no_store,
        ..RemoteUse::default()
    };
    Ok((kvasir, how))
}
