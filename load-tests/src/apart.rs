//! `kvasir-load apart`: whether a tenant can infer from response times what data another tenant has, or
//! whether it is active.
//!
//! A tenant requests, in pairs and in random order, data of the other tenant and data that no tenant has. It
//! also requests its own data, while the other tenant is idle and while it is active. The report gives the
//! medians of each and the differences within the pairs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use kvasir_api::{MEDIA_CHUNK, routes};
use kvasir_plot::{Page, number};
use kvasir_tests::{chunks, faulty::Dice, service::lookup_request};
use reqwest::{Method, header};
use serde::{Deserialize, Serialize};

use crate::{
    arguments::CommonArguments,
    cluster::Cluster,
    process::usage::{self, Machine},
    report,
    scenario::spec::ServiceSpec,
    traffic::{
        objects::Pool,
        tenant::{Tenant, http_client},
    },
};

/// Measures whether one tenant's response times depend on another tenant's data or activity.
#[derive(Debug, Args)]
pub(crate) struct ApartArguments {
    #[command(flatten)]
    pub(crate) common: CommonArguments,
    /// Pairs of requests for each comparison.
    #[arg(long, default_value_t = 2_000)]
    pairs: usize,
    /// Seed of the order of the requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const CONTEXTS: u64 = 64;
const CONTEXT_TOKENS: usize = 512;
const CHUNK_TOKENS: usize = 256;
/// Pairs of one window in which the other tenant is still, or at work.
const WINDOW: usize = 50;
/// Between two requests of the tenant that is at work.
const WORK_PAUSE: Duration = Duration::from_millis(10);

/// One question: its two cases, in pairs.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    name: String,
    pairs: usize,
    /// Microseconds: quartiles of each case.
    with_us: [f64; 3],
    without_us: [f64; 3],
    /// Median of the pairs' differences, with the ends of its interval of 95 %.
    difference_us: [f64; 3],
}

/// All questions.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Apart {
    machine: Machine,
    tenants_apart: Vec<Question>,
}

impl Question {
    fn new(name: &str, pairs: &[(f64, f64)]) -> Self {
        let sorted = |values: Vec<f64>| {
            let mut values = values;
            values.sort_by(f64::total_cmp);
            values
        };
        let quartiles = |values: Vec<f64>| {
            let values = sorted(values);
            [1, 2, 3].map(|quarter| values[(values.len() * quarter / 4).min(values.len() - 1)])
        };
        let differences = sorted(pairs.iter().map(|(with, without)| with - without).collect());
        // The confidence interval of a median by order statistics: it assumes nothing about the distribution.
        let (n, spread) = (differences.len(), 0.98 * (differences.len() as f64).sqrt());
        let at = |position: f64| differences[(position.max(0.0) as usize).min(n - 1)];
        let middle = n as f64 / 2.0;
        Self {
            name: name.to_owned(),
            pairs: n,
            with_us: quartiles(pairs.iter().map(|pair| pair.0).collect()),
            without_us: quartiles(pairs.iter().map(|pair| pair.1).collect()),
            difference_us: [at(middle), at(middle - spread), at(middle + spread)],
        }
    }

    fn row(&self) -> Vec<String> {
        let quartiles = |[first, median, third]: [f64; 3]| {
            format!("{} ({}–{})", number(median), number(first), number(third))
        };
        let [median, low, high] = self.difference_us;
        let difference = format!("{} ({} to {})", number(median), number(low), number(high));
        vec![
            self.name.clone(),
            self.pairs.to_string(),
            quartiles(self.with_us),
            quartiles(self.without_us),
            difference,
        ]
    }
}

const COLUMNS: [&str; 5] = ["", "pairs", "with, µs", "without, µs", "median difference, µs (95 %)"];

impl Apart {
    pub(crate) fn lines(&self) -> String {
        let rows = self.tenants_apart.iter().map(|question| {
            let row = question.row();
            format!(
                "{}: {} pairs, with {} µs, without {} µs, median difference {} µs",
                row[0], row[1], row[2], row[3], row[4]
            )
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn page(&self) -> String {
        let mut page = Page::new(
            "Isolation of tenants",
            "A tenant's response times with and without another tenant's data and activity.",
        );
        page.paragraph(&report::machine(&self.machine));
        page.paragraph("Medians with quartiles, of requests in pairs in random order; the difference is the median of the pairs', with its interval of 95 %.");
        page.table(&report::table(&COLUMNS, self.tenants_apart.iter().map(Question::row)));
        page.finish(report::FOOTER)
    }
}

/// A request of the tenant that measures, ready to be sent.
#[derive(Clone)]
struct Ask {
    method: Method,
    path: String,
    body: Vec<u8>,
}

impl Ask {
    fn get(path: String) -> Self {
        Self { method: Method::GET, path, body: Vec::new() }
    }

    fn lookup(of: &Tenant, tokens: &[u32]) -> Result<Self> {
        let request = lookup_request(of.model_id, "n", tokens, true);
        Ok(Self {
            method: Method::POST,
            path: routes::LOOKUP.to_owned(),
            body: serde_json::to_vec(&request)?,
        })
    }

    /// Microseconds to the end of the answer.
    async fn time(&self, tenant: &Tenant) -> Result<f64> {
        let request = tenant.request(0, self.method.clone(), &self.path).body(self.body.clone());
        let begun = Instant::now();
        let answer = request.send().await?;
        ensure!(!answer.status().is_server_error(), "{}: {}", self.path, answer.status());
        answer.bytes().await?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    }
}

pub(crate) async fn measure(arguments: &ApartArguments) -> Result<Apart> {
    let spec = ServiceSpec { store: "file".to_owned(), tenants: 2, ..ServiceSpec::default() };
    let machine = usage::machine();
    let cluster = Box::pin(Cluster::start(&arguments.common, &spec, false)).await?;
    let endpoints = cluster.endpoints();
    let (pool, http) = (Pool::new(arguments.seed), http_client()?);
    let mut tenants = Vec::new();
    for token in &endpoints.tokens {
        tenants.push(
            Tenant::register(Arc::clone(&pool), http.clone(), endpoints.urls.clone(), Some(token.clone()))
                .await?,
        );
    }
    let [own, other] = <[Tenant; 2]>::try_from(tenants).ok().context("two tenants")?;
    for n in 0..CONTEXTS {
        store(&other, n).await?;
        store(&own, 1_000_000 + n).await?;
    }
    let mut dice = Dice::new(arguments.seed);
    let mut questions = Vec::new();
    let context = |n: u64| chunks::tokens(n, CONTEXT_TOKENS);
    let ids_of = |root, n: u64| {
        let chunk = &chunks::context(root, &context(n), CHUNK_TOKENS, 1_000)[0];
        Ask::get(routes::chunk_object(&own.model_id, &chunk.seq_hash, &chunk.object_digest))
    };
    let key = |n: u64| Ask::get(format!("/v1/namespaces/n/objects/key-{n}"));
    // Data of no tenant is as new to the service as data of the other: this tenant requests each for the
    // first time.
    for (name, ask) in [
        (
            "lookup of tokens that the other stored",
            &(|n| Ask::lookup(&own, &context(n))) as &dyn Fn(u64) -> Result<Ask>,
        ),
        ("read by ids that the other has", &|n| Ok(ids_of(other.root, n))),
        ("read of a key that the other stored", &|n| Ok(key(n))),
    ] {
        let mut pairs = Vec::new();
        for n in 0..arguments.pairs as u64 {
            let (with, without) = (ask(n % CONTEXTS)?, ask(2_000_000 + n % CONTEXTS)?);
            pairs.push(if dice.below(2) == 0 {
                (with.time(&own).await?, without.time(&own).await?)
            } else {
                let without = without.time(&own).await?;
                (with.time(&own).await?, without)
            });
        }
        questions.push(Question::new(name, &pairs));
    }
    questions.push(beside_work(&own, Arc::new(other), arguments.pairs, &context).await?);
    Ok(Apart { machine, tenants_apart: questions })
}

/// Lookups of the tenant's own data, while the other stores and looks up and while it is idle.
async fn beside_work(
    own: &Tenant,
    other: Arc<Tenant>,
    pairs: usize,
    context: &impl Fn(u64) -> Vec<u32>,
) -> Result<Question> {
    let is_at_work = Arc::new(AtomicBool::new(false));
    let worker = {
        let (other, is_at_work) = (Arc::clone(&other), Arc::clone(&is_at_work));
        tokio::spawn(async move {
            for n in CONTEXTS.. {
                while !is_at_work.load(Ordering::Relaxed) {
                    tokio::time::sleep(WORK_PAUSE).await;
                }
                let _ = store(&other, 3_000_000 + n).await;
                tokio::time::sleep(WORK_PAUSE).await;
            }
        })
    };
    let asks: Vec<Ask> =
        (0..CONTEXTS).map(|n| Ask::lookup(own, &context(1_000_000 + n))).collect::<Result<_>>()?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    while with.len() < pairs {
        for (works, times) in [(true, &mut with), (false, &mut without)] {
            is_at_work.store(works, Ordering::Relaxed);
            tokio::time::sleep(2 * WORK_PAUSE).await;
            for n in 0..WINDOW {
                times.push(asks[n % asks.len()].time(own).await?);
            }
        }
    }
    worker.abort();
    let pairs: Vec<(f64, f64)> = with.into_iter().zip(without).collect();
    Ok(Question::new("lookup of one's own while the other stores", &pairs))
}

/// Stores a context, and an object by key.
async fn store(tenant: &Tenant, n: u64) -> Result<()> {
    for chunk in chunks::context(tenant.root, &chunks::tokens(n, CONTEXT_TOKENS), CHUNK_TOKENS, 1_000) {
        let path = routes::chunk(&tenant.model_id, &chunk.seq_hash);
        let request = tenant.request(0, Method::PUT, &path).header(header::CONTENT_TYPE, MEDIA_CHUNK);
        let answer = request.body(chunk.bytes).send().await?;
        ensure!(answer.status().is_success(), "{}", answer.status());
    }
    let path = format!("/v1/namespaces/n/objects/key-{n}");
    let answer = tenant.request(0, Method::PUT, &path).body(vec![7; 1_000]).send().await?;
    ensure!(answer.status().is_success(), "{}", answer.status());
    Ok(())
}

#[cfg(test)]
mod tests {
    use kvasir_plot::markup::check_markup;

    use super::*;

    fn pairs(seed: u64, later: f64) -> Vec<(f64, f64)> {
        let mut dice = Dice::new(seed);
        let mut noise = || dice.below(1_000) as f64;
        (0..1_000).map(|_| (later + noise(), noise())).collect()
    }

    #[test]
    fn a_difference_is_told_from_none() {
        // An interval of 95 % leaves zero out in one of twenty.
        let with_zero = (1..=200).filter(|seed| {
            let [_, low, high] = Question::new("same", &pairs(*seed, 0.0)).difference_us;
            low < 0.0 && 0.0 < high
        });
        assert!((180..=198).contains(&with_zero.count()));
        let later = Question::new("later", &pairs(1, 200.0));
        let [median, low, _] = later.difference_us;
        assert!(low > 100.0 && (150.0..250.0).contains(&median), "{median} from {low}");
        let apart = Apart { machine: usage::machine(), tenants_apart: vec![later] };
        check_markup(&apart.page()).unwrap();
    }
}
