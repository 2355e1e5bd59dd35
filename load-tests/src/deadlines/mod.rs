//! `kvasir-load deadlines`: loads of separate clients at once, each with its own deadline, through one service
//! whose egress has a rate. The clients do not know of each other, so only the service can let the load that is
//! due first go first.

mod result;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Args;
use futures::future::try_join_all;
use kvasir_client::{Deadline, Kvasir, QualityFloor, report::ChunkReport, tuning::RecomputeModel};
use kvasir_codec::Profile;
use kvasir_tests::faulty::Dice;
use kvasir_types::{Level, ModelSpec};

pub(crate) use self::result::Deadlines;

use self::result::{Difference, LoadSample, MEASURES, Served};
use crate::{
    arguments::CommonArguments,
    cluster::Cluster,
    link::{self, SyntheticKv},
    process::usage,
    scenario::spec::ServiceSpec,
};

/// Measures loads of separate clients at once, with different deadlines, through one service whose egress has a rate.
#[derive(Debug, Args)]
pub(crate) struct DeadlineArguments {
    #[command(flatten)]
    pub(crate) common: CommonArguments,
    /// An older `kvasir` binary, which serves the same rounds in pairs with the first one.
    #[arg(long)]
    before: Option<PathBuf>,
    /// Rounds that count, after one that does not.
    #[arg(long, default_value_t = 30)]
    rounds: usize,
    /// Seed of the deadlines.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Each has a context of its own.
const CLIENTS: usize = 8;
const LAYERS: usize = 8;
const CONTEXT_TOKENS: usize = 2_048;
const CHUNK_TOKENS: usize = 512;
/// Rate of the service's egress: so low that two cores decode as fast.
const EGRESS_MIB: u64 = 40;
/// The earliest and the latest deadline, in multiples of the time that all finest bytes of a round need.
const DEADLINES: (f64, f64) = (0.4, 2.0);
/// A GPU so slow that no chunk is computed to save time: what has not arrived is late.
const PREFILL_SECONDS_PER_TOKEN: f64 = 1.0;
/// Between rounds, for requests that clients gave up.
const PAUSE: Duration = Duration::from_millis(100);

struct LoadingClient {
    kvasir: Kvasir,
    tokens: Vec<u32>,
}

impl LoadingClient {
    async fn load(&self, within: Duration, finest: Level) -> Result<LoadSample> {
        let (begun, deadline) = (Instant::now(), Deadline::within(within));
        let session = self.kvasir.session(&self.tokens).deadline(deadline).await;
        let loaded = session.load([link::table(self.tokens.len())?], deadline)?.finish().await;
        let took = begun.elapsed();
        // There are none if the lookup came too late.
        let chunks: &[ChunkReport] = loaded.report().map_or(&[], |report| &report.chunks);
        let is_whole = !chunks.is_empty() && chunks.iter().all(|chunk| chunk.level.is_some());
        let in_time = is_whole && took <= within;
        let at_finest = chunks.iter().filter(|chunk| in_time && chunk.level == Some(finest));
        let at_finest: u64 = at_finest.map(|chunk| chunk.tokens.len()).sum();
        let all: u64 = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let bytes = loaded.report().map_or(0, |report| report.bytes);
        Ok(LoadSample { took, in_time, finest: at_finest as f64 / all.max(1) as f64, bytes })
    }
}

/// A service with its clients.
struct Side {
    name: &'static str,
    clients: Vec<LoadingClient>,
    finest: Level,
    finest_bytes: u64,
    rounds: Vec<Vec<LoadSample>>,
    _cluster: Cluster,
}

impl Side {
    /// Starts a service and stores a context for each client.
    async fn start(
        common: &CommonArguments,
        name: &'static str,
        (spec, profile): (&Arc<ModelSpec>, &Arc<Profile>),
    ) -> Result<Self> {
        let egress = format!("server.egress_per_second={EGRESS_MIB}MiB");
        let settings = vec![egress, "hot.memory=1GiB".to_owned(), "hot.disk=0".to_owned()];
        let service = ServiceSpec { store: "file".into(), settings, ..ServiceSpec::default() };
        let cluster = Box::pin(Cluster::start(common, &service, false)).await?;
        let url = format!("http://{}", cluster.replicas[0].address);
        let (mut clients, mut finest_bytes) = (Vec::new(), 0);
        for n in 0..CLIENTS {
            let builder = Kvasir::builder(&*url).model(Arc::clone(spec)).profile(Arc::clone(profile));
            let slow = RecomputeModel::from_seconds(0.0, PREFILL_SECONDS_PER_TOKEN, 0.0);
            let builder = builder.namespace("deadlines").chunk_tokens(CHUNK_TOKENS).recompute_model(slow);
            // The deadline decides, from the coarsest level on.
            let kvasir = builder.quality(QualityFloor::Adaptive).connect().await?;
            let tokens = n * CONTEXT_TOKENS..(n + 1) * CONTEXT_TOKENS;
            let tokens: Vec<u32> = tokens.map(|token| token as u32).collect();
            let session = kvasir.session(&tokens).without_lookup().await;
            Box::pin(session.save_now(&SyntheticKv, tokens.len(), |_| ())).await?;
            let stored = kvasir.session(&tokens).await;
            ensure!(stored.matched_tokens() == tokens.len() as u64, "{} stored", stored.matched_tokens());
            finest_bytes += stored.chunks().iter().filter_map(|chunk| chunk.level_bytes.last()).sum::<u64>();
            clients.push(LoadingClient { kvasir, tokens });
        }
        let finest = Level(profile.level_count().saturating_sub(1) as u8);
        Ok(Self { name, clients, finest, finest_bytes, rounds: Vec::new(), _cluster: cluster })
    }

    /// All clients load at once, each within its time.
    async fn round(&mut self, times: &[Duration]) -> Result<()> {
        let loads = self.clients.iter().zip(times).map(|(client, time)| client.load(*time, self.finest));
        let loads = try_join_all(loads).await?;
        self.rounds.push(loads);
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// Measures the service, in pairs of rounds with the one before if there is one.
pub(crate) async fn measure(arguments: &DeadlineArguments) -> Result<Deadlines> {
    ensure!(arguments.rounds > 1, "it needs two rounds");
    let (machine, spec) = (usage::machine(), Arc::new(link::spec(LAYERS)));
    let profile = link::profile(&spec)?;
    let now = Box::pin(Side::start(&arguments.common, "now", (&spec, &profile))).await?;
    let finest_s = now.finest_bytes as f64 / (EGRESS_MIB << 20) as f64;
    let mut sides = vec![now];
    if let Some(kvasir) = arguments.before.clone() {
        let common = CommonArguments { kvasir, ..arguments.common.clone() };
        sides.push(Box::pin(Side::start(&common, "before", (&spec, &profile))).await?);
    }
    let (mut dice, (earliest, latest)) = (Dice::new(arguments.seed), DEADLINES);
    for round in 0..=arguments.rounds {
        let share = |_| earliest + (latest - earliest) * dice.below(1_000) as f64 / 1e3;
        let shares = (0..CLIENTS).map(share);
        let times: Vec<_> = shares.map(|share| Duration::from_secs_f64(finest_s * share)).collect();
        for nth in 0..sides.len() {
            // Each is the first one in every other round.
            let side = (nth + round) % sides.len();
            sides[side].round(&times).await?;
        }
        if round == 0 {
            sides.iter_mut().for_each(|side| side.rounds.clear());
        }
    }
    let differences = match &sides[..] {
        [now, before] => MEASURES.map(|measure| Difference::new(measure, &now.rounds, &before.rounds)).into(),
        _ => Vec::new(),
    };
    let what = format!(
        "{CLIENTS} clients that do not know of each other load {CONTEXT_TOKENS} tokens each at once, in {earliest} to {latest} times \
         the {finest_s:.2} s that all finest bytes need at the service's {EGRESS_MIB} MiB/s"
    );
    let services = sides.iter().map(|side| Served::new(side.name, &side.rounds)).collect();
    Ok(Deadlines { what, machine, seed: arguments.seed, rounds: arguments.rounds, services, differences })
}
