//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use kvasir_types::Name;
use url::Url;

use crate::{
    commands::{
        bench::BenchCommand,
        completions::CompletionsArguments,
        contexts::ContextsCommand,
        engine::EngineCommand,
        events::EventsArguments,
        explain::ExplainArguments,
        jobs::{GcArguments, ScrubArguments},
        plan::PlanArguments,
        selftest::SelftestArguments,
        sim_evict::SimEvictArguments,
        sim_stream::SimStreamArguments,
        token::TokenArguments,
        top::TopArguments,
        usage::UsageArguments,
    },
    error::EXIT_CODES,
};

/// Kvasir stores the KV caches of language models, compressed, and brings them back in time.
#[derive(Debug, Parser)]
#[command(name = "kvasir", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the whole path once on this machine: model, codec, service, shaped link, report.
    Demo(DemoArguments),
    /// Run the service.
    Serve(ServeArguments),
    /// Run the reference engine: completions over HTTP, KV from Kvasir.
    #[command(subcommand)]
    Engine(EngineCommand),
    /// Say why a lookup of a context misses.
    Explain(ExplainArguments),
    /// Create, list and change named contexts.
    #[command(subcommand)]
    Contexts(ContextsCommand),
    /// Say what is kept in the store.
    Usage(UsageArguments),
    /// Run a pass of a service's garbage collector.
    Gc(GcArguments),
    /// Let a service read every object and compare it with its name.
    Scrub(ScrubArguments),
    /// Say whether a service works: put, lookup, get, compare and delete a chunk of random tokens.
    Selftest(SelftestArguments),
    /// Show what happens to chunks, as it happens.
    Events(EventsArguments),
    /// Show a service live: requests, hits, bytes by level and medium, SLO attainment.
    Top(TopArguments),
    /// Print a script by which a shell completes this command line.
    Completions(CompletionsArguments),
    /// Encode a KV dump and store it in a service.
    Store(StoreArguments),
    /// Say how much of a context a service holds.
    Lookup(LookupArguments),
    /// Load a context's KV from a service into a dump.
    Fetch(FetchArguments),
    /// Show what is in a chunk object (.kvc) or a profile (.kvp).
    Inspect(InspectArguments),
    /// Train and look at profiles.
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Encode a KV dump into one chunk object, without a service.
    Encode(EncodeArguments),
    /// Decode a chunk object into a KV dump, without a service.
    Decode(DecodeArguments),
    /// Compute the KV cache of a text with the shipped model and write it as a dump.
    Kv(KvArguments),
    /// Calculate: size of a model's KV, cost of keeping it, the level that fits a link and an SLO.
    Plan(PlanArguments),
    /// Make a bearer token and the entry of the tenants file that lets it in.
    Token(TokenArguments),
    /// Build the service's index again, from the object store or (`--journal`) from the journal.
    RebuildIndex(MaintainArguments),
    /// Work on an object store directly, without a service.
    #[command(subcommand)]
    Maintain(MaintainCommand),
    /// Simulate on recorded traces.
    #[command(subcommand)]
    Sim(SimCommand),
    /// Measure the codec beside its peers.
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// Maintenance without a service; it may run beside any number of them.
#[derive(Debug, Subcommand)]
pub(crate) enum MaintainCommand {
    /// Collect garbage in the object store once: expired, duplicate, contained and evicted chunks, tombstones, journal.
    Gc(MaintainArguments),
    /// Read every stored object again and compare it with its name.
    Scrub(MaintainArguments),
}

/// The simulators.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Replay a request trace through the eviction policies.
    Evict(SimEvictArguments),
    /// Stream contexts over recorded or random links under every policy.
    Stream(SimStreamArguments),
}

/// Which service, and whose namespace.
#[derive(Debug, Args)]
pub(crate) struct ServiceArguments {
    /// Address of the service.
    #[arg(long, default_value = "http://127.0.0.1:7480")]
    pub(crate) url: Url,
    /// Namespace: contexts of different namespaces never match.
    #[arg(long, default_value = "default")]
    pub(crate) namespace: Name,
    /// Who we are.
    #[command(flatten)]
    pub(crate) credential: CredentialArguments,
}

/// The credential for a service that asks for one.
#[derive(Debug, Clone, Args)]
pub(crate) struct CredentialArguments {
    /// File with the token; KVASIR_TOKEN otherwise.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// File with CA certificates (PEM) to trust beside the system's.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Not a flag: command lines are seen by others.
    #[arg(long, env = "KVASIR_TOKEN", hide = true, hide_env_values = true)]
    pub(crate) token_from_environment: Option<String>,
}

/// Where a command gets its tokens.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ContextArguments {
    /// A text file, tokenised by the shipped model.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// A KV dump (safetensors); its tokens are used.
    #[arg(long, value_name = "FILE")]
    pub(crate) kv: Option<PathBuf>,
}

/// Arguments of `kvasir demo`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArguments {
    /// Print the result as one JSON document on stdout.
    #[arg(long)]
    pub(crate) json: bool,
    /// Folder for the report and the figures.
    #[arg(long, value_name = "DIR", default_value = "kvasir-demo")]
    pub(crate) out: PathBuf,
    /// Time to first token to aim at, in milliseconds [default: half of what recomputing takes here, at most 500].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) slo_ms: Option<u64>,
    /// Mean bandwidth the series is scaled to, in Mbit/s; recorded traces keep their own unless given.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) link_mbps: Option<f64>,
    /// Bandwidth series to replay on the link instead of the built-in one.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// A running service to use, http://HOST:PORT, instead of one inside this process.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<Url>,
    /// Who we are there.
    #[command(flatten)]
    pub(crate) credential: CredentialArguments,
}

/// Arguments of `kvasir serve`, handed on to the server as they are: every setting is a flag there.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct ServeArguments {
    /// `--config FILE`, `--listen ADDR`, `--<section>.<key> VALUE`; `kvasir serve --help` shows them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SETTINGS")]
    pub(crate) settings: Vec<String>,
}

/// Arguments of commands that work on a store directly.
#[derive(Debug, Args)]
pub(crate) struct MaintainArguments {
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The service's settings, as for `kvasir serve`: `--config FILE`, `--<section>.<key> VALUE`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SETTINGS")]
    pub(crate) settings: Vec<String>,
}

/// Arguments of `kvasir store`.
#[derive(Debug, Args)]
pub(crate) struct StoreArguments {
    /// The service.
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
    /// The KV dump to store.
    #[arg(long, value_name = "FILE")]
    pub(crate) kv: PathBuf,
    /// Profile to encode with; by default the one that ships with the model.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Tokens of a chunk: a multiple of 256.
    #[arg(long, value_name = "N", default_value_t = kvasir_types::CHUNK_TOKENS_DEFAULT)]
    pub(crate) chunk_tokens: usize,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `kvasir lookup`.
#[derive(Debug, Args)]
pub(crate) struct LookupArguments {
    /// The service.
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
    /// The context.
    #[command(flatten)]
    pub(crate) context: ContextArguments,
    /// Profile that the context was encoded with; by default the one that ships with the model.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `kvasir fetch`.
#[derive(Debug, Args)]
pub(crate) struct FetchArguments {
    /// The service.
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
    /// The context.
    #[command(flatten)]
    pub(crate) context: ContextArguments,
    /// Profile that the context was encoded with; by default the one that ships with the model.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Level to fetch; by default the finest.
    #[arg(long, value_name = "N", conflicts_with = "slo_ms")]
    pub(crate) level: Option<u8>,
    /// Adapt levels so that the load takes at most this many milliseconds.
    #[arg(long, value_name = "MS")]
    pub(crate) slo_ms: Option<u64>,
    /// The dump to write.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `kvasir inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// A chunk object or a profile.
    pub(crate) file: PathBuf,
    /// Model spec, as JSON or as any KV dump of the model; not needed for the shipped model.
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Commands about profiles.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// Train a profile from KV dumps of one model, or for the shipped model from texts.
    Train(TrainArguments),
    /// Show a profile: levels, scopes, ranks, tables, what decoding costs.
    Inspect(ProfileInspectArguments),
    /// Pack a profile's bases and factors in few bits, so that it fits a budget.
    Pack(PackArguments),
}

/// How a profile codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecipeName {
    /// A trained basis over all layers with a token predictor: the smallest.
    Basis,
    /// Static mean, no basis: bit-exact and cheap to decode.
    Direct,
    /// The cache bit for bit, as the only level.
    ExactOnly,
    /// `direct` with the cache bit for bit on top.
    ExactResidual,
    /// The configuration of the CacheGen paper.
    Cachegen,
}

/// Contexts that training takes from texts unless it is told otherwise: their caches are held, 8 MB each.
pub(crate) const CONTEXTS: usize = 96;

/// Arguments of `kvasir profile train`.
#[derive(Debug, Args)]
pub(crate) struct TrainArguments {
    /// KV dumps of contexts to train on, all of one model. Levels are then spaced by the error's power.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["texts", "own_texts"])]
    pub(crate) kv: Vec<PathBuf>,
    /// Texts for the shipped model, cut into contexts. The model judges: levels are spaced by logit KL.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) texts: Vec<PathBuf>,
    /// Most contexts taken from the texts, evenly spaced over all of them. The caches of all are held: 8 MB each.
    #[arg(long, value_name = "N", default_value_t = CONTEXTS, requires = "texts")]
    pub(crate) contexts: usize,
    /// Contexts that the shipped model writes itself, beside the texts where those are given too.
    #[arg(long, value_name = "N")]
    pub(crate) own_texts: Option<usize>,
    /// Seed of the model's own texts.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How the profile codes.
    #[arg(long, value_enum, default_value_t = RecipeName::Basis)]
    pub(crate) recipe: RecipeName,
    /// Most bytes of the profile, as a share of the model's weights.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) budget_weights: Option<f64>,
    /// Most multiply-adds of decoding a token, as a share of the model's in prefill.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) budget_flops: Option<f64>,
    /// Parameters of the model the dumps are of, at 2 bytes each: what budgets are shares of.
    #[arg(long, value_name = "N")]
    pub(crate) parameters: Option<u64>,
    /// Try scopes and predictors on a part of the data and take what needs the fewest bits.
    #[arg(long)]
    pub(crate) search: bool,
    /// Layers of a scope; all where it is not given.
    #[arg(long, value_name = "N", conflicts_with = "search")]
    pub(crate) scope_layers: Option<usize>,
    /// Keys and values in scopes of their own.
    #[arg(long, conflicts_with = "search")]
    pub(crate) planes_apart: bool,
    /// Factors of the token predictor: of the current token, of the one before.
    #[arg(long, value_name = "N,N", value_delimiter = ',', num_args = 1..=2)]
    pub(crate) factors: Option<Vec<usize>>,
    /// Bits of a factor.
    #[arg(long, value_name = "BITS", default_value_t = 8, value_parser = clap::value_parser!(u8).range(2..=8))]
    pub(crate) factor_bits: u8,
    /// Tokens stored exactly at the start of a context; measured where it is not given.
    #[arg(long, value_name = "N")]
    pub(crate) exact_tokens: Option<usize>,
    /// Logit KL of the finest level, in nats a token.
    #[arg(long, value_name = "NATS", default_value_t = 3e-4)]
    pub(crate) finest_kl: f32,
    /// Print the levels as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The profile to write.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// Arguments of `kvasir profile inspect`.
#[derive(Debug, Args)]
pub(crate) struct ProfileInspectArguments {
    /// The profile; the shipped one where none is given.
    pub(crate) file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `kvasir profile pack`.
#[derive(Debug, Args)]
pub(crate) struct PackArguments {
    /// The profile.
    pub(crate) file: PathBuf,
    /// Most bytes of the packed profile, as a share of the model's weights.
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "10%")]
    pub(crate) budget_weights: f64,
    /// Parameters of the model, at 2 bytes each; not needed for the shipped model.
    #[arg(long, value_name = "N")]
    pub(crate) parameters: Option<u64>,
    /// Bits of a factor of the token predictor.
    #[arg(long, value_name = "BITS", default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=8))]
    pub(crate) factor_bits: u8,
    /// Tokens stored exactly at the start of a context, where not as many as before.
    #[arg(long, value_name = "N")]
    pub(crate) exact_tokens: Option<usize>,
    /// A text on which the shipped model measures what the levels cost.
    #[arg(long, value_name = "FILE")]
    pub(crate) texts: Option<PathBuf>,
    /// The profile to write.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// `5%` or `0.05`.
fn percent(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    let share = number.parse::<f64>().map_err(|e| format!("neither a share nor a percentage: {e}"))? * unit;
    if share.is_finite() && share > 0.0 { Ok(share) } else { Err("must be above 0".to_owned()) }
}

/// Arguments of `kvasir encode`.
#[derive(Debug, Args)]
pub(crate) struct EncodeArguments {
    /// The KV dump.
    #[arg(long, value_name = "FILE")]
    pub(crate) kv: PathBuf,
    /// The profile.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: PathBuf,
    /// The chunk object to write.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// Arguments of `kvasir decode`.
#[derive(Debug, Args)]
pub(crate) struct DecodeArguments {
    /// The chunk object.
    pub(crate) file: PathBuf,
    /// The profile it was encoded with.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: PathBuf,
    /// Level to decode; by default the finest.
    #[arg(long, value_name = "N")]
    pub(crate) level: Option<u8>,
    /// Model spec, as JSON or as any KV dump of the model; not needed for the shipped model.
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
    /// The dump to write.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// Arguments of `kvasir kv`.
#[derive(Debug, Args)]
pub(crate) struct KvArguments {
    /// The text.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Leading tokens of the text to use; at most the model's context.
    #[arg(long, value_name = "N", default_value_t = 896)]
    pub(crate) tokens: usize,
    /// Tokens of the text to skip before.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) skip: usize,
    /// The dump to write.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("a number above 0 is needed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
