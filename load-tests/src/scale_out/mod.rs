//! Replicas with a link of their own each, over one S3 server: what N of them do that one does not.

mod bounds;
mod clients;
mod conversation;
mod document;
mod group;
mod hot;
mod membership;
mod network;
mod page;
mod prompts;
#[cfg(test)]
mod samples;

use std::{collections::BTreeMap, fmt, path::PathBuf, pin::pin};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use kvasir_server::shutdown_signal;
use serde::{Deserialize, Serialize};

use self::{
    clients::Spreading,
    conversation::Conversations,
    hot::HotReads,
    membership::{Change, ReplicasChanged},
    network::BridgedNetwork,
};
use crate::{
    arguments::CommonArguments,
    process::usage::{self, Machine},
    say,
};

/// Measures replicas in network namespaces over one S3 server: throughput, hit ratios, a rolling restart. Exits with 1 if a bound was
/// missed. Writes `scale-out` after each part; what an earlier run left in that document stays until this one has measured it.
/// Needs root.
#[derive(Debug, Args)]
pub(crate) struct ScaleArguments {
    #[command(flatten)]
    pub(crate) common: CommonArguments,
    /// What to measure.
    #[arg(long, value_delimiter = ',', default_value = "hot,conversation,template,restart,leave,join")]
    parts: Vec<Part>,
    /// Numbers of replicas, one after the other. The restart uses the largest number.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    replicas: Vec<usize>,
    /// Bandwidth of each replica's link, in Mb/s: low enough that two cores can fill all links.
    #[arg(long, default_value_t = 200)]
    link_mbps: u64,
    /// MinIO binary to use as the object store; `tests/servers/minio install` builds one. Default: the tests' own S3 server.
    #[arg(long)]
    pub(crate) minio: Option<PathBuf>,
    /// Objects for hot reads: with this many, each replica gets about the same number.
    #[arg(long, default_value_t = 4_096)]
    objects: usize,
    /// Bytes of each object.
    #[arg(long, default_value_t = 200_000)]
    bytes: usize,
    /// Seconds of each measurement of hot reads.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Prompts of the trace `conversation`, from its beginning.
    #[arg(long, default_value_t = 2_000)]
    prompts: usize,
    /// Reads per second while replicas restart, leave or join.
    #[arg(long, default_value_t = 150.0)]
    rate: f64,
}

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    /// Hot reads, the journal's cost, a killed replica.
    Hot,
    /// Hit ratios of a conversation trace.
    Conversation,
    /// The same with one system prompt before most conversations, on one replica and on the largest number.
    Template,
    /// A rolling restart under load.
    Restart,
    /// A replica leaves for good under load.
    Leave,
    /// An empty replica joins under load.
    Join,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Scaling {
    what: String,
    /// Of the last run.
    machine: Machine,
    /// Parts that an earlier run measured, and on what.
    #[serde(default)]
    earlier: BTreeMap<Part, Machine>,
    link_mbps: u64,
    seed: u64,
    pub(crate) skipped: Option<String>,
    rows: Vec<HotReads>,
    conversations: Vec<Conversations>,
    restarts: Vec<ReplicasChanged>,
}

const SEED: u64 = 1;
/// Share of the conversations that have one template in common, in the measurement of hot prefixes.
const TEMPLATE_SHARE: f64 = 0.6;

/// How so many replicas are asked: one has no choice.
fn spreadings(replicas: usize) -> &'static [Spreading] {
    if replicas == 1 { &[Spreading::Routes] } else { &[Spreading::Routes, Spreading::Chance] }
}

/// Measures all parts that were asked for, and writes the document after each; if namespaces cannot be created, the result says why.
///
/// # Errors
///
/// If a part cannot be measured, or this process is asked to end: the document has the parts before.
pub(crate) async fn scale(arguments: &ScaleArguments) -> Result<Scaling> {
    let out = &arguments.common.out;
    let mut scaling = Scaling {
        what: format!(
            "replicas in network namespaces with a shaped link each, over {}",
            if arguments.minio.is_some() { "MinIO" } else { "the S3 server of the tests" }
        ),
        machine: usage::machine(),
        earlier: BTreeMap::new(),
        link_mbps: arguments.link_mbps,
        seed: SEED,
        skipped: BridgedNetwork::new(1, arguments.link_mbps).err().map(|error| format!("{error:#}")),
        rows: Vec::new(),
        conversations: Vec::new(),
        restarts: Vec::new(),
    };
    if scaling.skipped.is_some() {
        scaling.write_if_first(out)?;
        return Ok(scaling);
    }
    scaling.take_over(out, &arguments.parts)?;
    // Namespaces and processes that stayed would answer the next run.
    let mut ended = pin!(shutdown_signal());
    for &part in Part::value_variants().iter().filter(|part| arguments.parts.contains(part)) {
        // Nobody would answer meanwhile: there is nothing to measure.
        let is_of_several = matches!(part, Part::Restart | Part::Leave | Part::Join);
        if is_of_several && arguments.replicas.iter().all(|&replicas| replicas < 2) {
            continue;
        }
        scaling.leave_out(&[part]);
        tokio::select! {
            measured = Box::pin(measure(arguments, part, &mut scaling)) => measured?,
            () = &mut ended => bail!("asked to end while {part} was measured"),
        }
        scaling.write(out)?;
    }
    Ok(scaling)
}

async fn measure(arguments: &ScaleArguments, part: Part, scaling: &mut Scaling) -> Result<()> {
    let most = arguments.replicas.iter().copied().max().unwrap_or(1);
    match part {
        Part::Hot => {
            for &replicas in &arguments.replicas {
                let row = Box::pin(hot::measure(arguments, replicas)).await?;
                say(&page::hot_line(&row, &scaling.rows));
                scaling.rows.push(row);
            }
            Ok(())
        }
        Part::Conversation => measure_conversations(arguments, &arguments.replicas, 0.0, scaling).await,
        Part::Template => measure_conversations(arguments, &[1, most], TEMPLATE_SHARE, scaling).await,
        Part::Restart => measure_change(arguments, most, Change::RollingRestart, scaling).await,
        Part::Leave => measure_change(arguments, most, Change::OneLeaves, scaling).await,
        Part::Join => measure_change(arguments, most, Change::OneJoins, scaling).await,
    }
}

async fn measure_conversations(
    arguments: &ScaleArguments,
    sizes: &[usize],
    template_share: f64,
    scaling: &mut Scaling,
) -> Result<()> {
    for &replicas in sizes {
        for &spreading in spreadings(replicas) {
            let row = Box::pin(conversation::measure(arguments, replicas, spreading, template_share)).await?;
            say(&page::conversation_line(&row));
            scaling.conversations.push(row);
        }
    }
    Ok(())
}

async fn measure_change(
    arguments: &ScaleArguments,
    replicas: usize,
    change: Change,
    scaling: &mut Scaling,
) -> Result<()> {
    for &spreading in spreadings(replicas) {
        let row = Box::pin(membership::measure(arguments, replicas, spreading, change)).await?;
        say(&page::change_line(&row));
        scaling.restarts.push(row);
    }
    Ok(())
}

impl Scaling {
    /// What there is to say at the end: each row was printed when it was measured.
    pub(crate) fn lines(&self) -> String {
        if let Some(reason) = &self.skipped {
            return format!("SKIPPED: {reason}");
        }
        let missed: String = bounds::missed(self).iter().map(|bound| format!("\nMISSED: {bound}")).collect();
        let missing = page::missing_line(self).map_or(String::new(), |line| format!("\n{line}"));
        format!("links of {} Mb/s{missed}{missing}", self.link_mbps)
    }

    /// The page of the measurement.
    pub(crate) fn page(&self) -> String {
        page::page(self)
    }

    /// Whether no bound was missed by what was measured.
    pub(crate) fn passed(&self) -> bool {
        bounds::missed(self).is_empty()
    }
}
