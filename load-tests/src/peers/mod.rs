//! Compares the service with other servers in one run: the same bytes, the same two cores, the same client,
//! and every read byte compared.

mod arguments;
mod client;
mod lmcache;
mod lmcache_s3;
mod minio;
mod protocol;
mod redis;
mod servers;
mod table;
mod target;
mod tls;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Result;

pub(crate) use self::{arguments::PeersArguments, table::Comparison};
use self::{
    client::{gets, puts},
    table::{PeerMeasurement, Rounds},
    target::{SampleValues, Target},
};
use crate::{
    process::usage,
    traffic::objects::{ContextShape, Pool},
};

const SEED: u64 = 1;
/// Written values have numbers from here on.
const WRITTEN_FROM: u64 = 1 << 32;

/// Measures all of them.
pub(crate) async fn compare(arguments: &PeersArguments) -> Result<Comparison> {
    let mut comparison = Comparison::new(usage::machine(), SEED, arguments.connections, arguments.seconds);
    let pool = Pool::new(SEED);
    for &megabytes in &arguments.sizes {
        let shape = ContextShape { chunks: 1, tokens: 1536, bytes: megabytes * 1_000_000 };
        let mut skipped = BTreeMap::new();
        let (targets, maker) = servers::all(arguments, &pool, shape, &mut skipped).await?;
        let targets = Arc::new(targets);
        let (mut read, mut written) = (rounds_of(&targets), rounds_of(&targets));
        for round in 0..=arguments.rounds {
            for (nth, rounds) in read.iter_mut().enumerate() {
                let one = read_one(arguments, &pool, &targets, nth).await?;
                // The first warms caches, connections and the processor.
                if round > 0 {
                    rounds.push(one);
                }
            }
        }
        let (count, warm_up) = (arguments.writes_of(shape.bytes), arguments.warm_up_rounds(shape.bytes));
        for round in 0..warm_up + arguments.rounds {
            let made = Arc::new(maker.make(WRITTEN_FROM + (round * count) as u64, count)?);
            for nth in (0..targets.len()).filter(|nth| targets[*nth].writes.is_some()) {
                let one = write_one(arguments, &made, &targets, nth).await?;
                if round >= warm_up {
                    written[nth].push(one);
                }
            }
        }
        let mut names: Vec<_> = targets.iter().map(|target| target.name).collect();
        if let Some(minio) = targets.iter().find(|target| target.name == "minio") {
            let directory = tempfile::tempdir()?;
            match lmcache_s3::measure(arguments, minio.server, shape.bytes, directory.path()).await {
                Ok(rounds) => {
                    names.push("lmcache over minio");
                    read.push(rounds.get);
                    written.push(rounds.put);
                }
                Err(error) => _ = skipped.insert("lmcache over minio".into(), format!("{error:#}")),
            }
        }
        comparison.add(megabytes, &names, read, written, skipped);
    }
    Ok(comparison)
}

fn rounds_of(targets: &[Target]) -> Rounds {
    vec![Vec::new(); targets.len()]
}

async fn read_one(
    arguments: &PeersArguments,
    pool: &Arc<Pool>,
    targets: &Arc<Vec<Target>>,
    nth: usize,
) -> Result<PeerMeasurement> {
    let (pool, targets) = (Arc::clone(pool), Arc::clone(targets));
    let (connections, seconds) = (arguments.connections, Duration::from_secs_f64(arguments.seconds));
    let read = move || gets(targets[nth].server, &pool, &targets[nth].reads, connections, seconds);
    tokio::task::spawn_blocking(read).await?
}

async fn write_one(
    arguments: &PeersArguments,
    made: &Arc<SampleValues>,
    targets: &Arc<Vec<Target>>,
    nth: usize,
) -> Result<PeerMeasurement> {
    let (made, targets, connections) = (Arc::clone(made), Arc::clone(targets), arguments.connections);
    let write = move || {
        let target = &targets[nth];
        let Some(request) = &target.writes else { anyhow::bail!("{} does not accept writes", target.name) };
        let writes: Vec<_> =
            made.iter().enumerate().map(|(nth, (known, object))| request(nth, known, object)).collect();
        puts(target.server, &writes, connections)
    };
    tokio::task::spawn_blocking(write).await?
}
