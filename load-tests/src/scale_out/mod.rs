//! Replicas with a link of their own each, over one S3 server: what N of them do that one does not.

mod bounds;
mod clients;
mod conversation;
mod group;
mod hot;
mod membership;
mod network;
mod page;
mod prompts;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
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
/// missed. Needs root.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
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

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Scaling {
    what: String,
    machine: Machine,
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

/// Measures all sizes; if namespaces cannot be created, the result says why.
pub(crate) async fn scale(arguments: &ScaleArguments) -> Result<Scaling> {
    let mut scaling = Scaling {
        what: format!(
            "replicas in network namespaces with a shaped link each, over {}",
            if arguments.minio.is_some() { "MinIO" } else { "the S3 server of the tests" }
        ),
        machine: usage::machine(),
        link_mbps: arguments.link_mbps,
        seed: SEED,
        skipped: BridgedNetwork::new(1, arguments.link_mbps).err().map(|error| format!("{error:#}")),
        rows: Vec::new(),
        conversations: Vec::new(),
        restarts: Vec::new(),
    };
    if scaling.skipped.is_some() {
        return Ok(scaling);
    }
    let most = arguments.replicas.iter().copied().max().unwrap_or(1);
    if arguments.parts.contains(&Part::Hot) {
        for &replicas in &arguments.replicas {
            let row = Box::pin(hot::measure(arguments, replicas)).await?;
            say(&page::hot_line(&row, &scaling.rows));
            scaling.rows.push(row);
        }
    }
    let mut conversations = Vec::new();
    if arguments.parts.contains(&Part::Conversation) {
        conversations.extend(arguments.replicas.iter().map(|&replicas| (replicas, 0.0)));
    }
    if arguments.parts.contains(&Part::Template) {
        conversations.extend([(1, TEMPLATE_SHARE), (most, TEMPLATE_SHARE)]);
    }
    for (replicas, template) in conversations {
        for &spreading in spreadings(replicas) {
            let row = Box::pin(conversation::measure(arguments, replicas, spreading, template)).await?;
            say(&page::conversation_line(&row));
            scaling.conversations.push(row);
        }
    }
    let changes = [
        (Part::Restart, Change::RollingRestart),
        (Part::Leave, Change::OneLeaves),
        (Part::Join, Change::OneJoins),
    ];
    for (_, change) in changes.into_iter().filter(|(part, _)| arguments.parts.contains(part) && most > 1) {
        for &spreading in spreadings(most) {
            let row = Box::pin(membership::measure(arguments, most, spreading, change)).await?;
            say(&page::change_line(&row));
            scaling.restarts.push(row);
        }
    }
    Ok(scaling)
}

impl Scaling {
    /// What there is to say at the end: each row was printed when it was measured.
    pub(crate) fn lines(&self) -> String {
        if let Some(reason) = &self.skipped {
            return format!("SKIPPED: {reason}");
        }
        let missed: String = bounds::missed(self).iter().map(|bound| format!("\nMISSED: {bound}")).collect();
        format!("links of {} Mb/s{missed}", self.link_mbps)
    }

    /// The page of the measurement.
    pub(crate) fn page(&self) -> String {
        page::page(self)
    }

    /// Whether no bound was missed.
    pub(crate) fn passed(&self) -> bool {
        bounds::missed(self).is_empty()
    }
}
