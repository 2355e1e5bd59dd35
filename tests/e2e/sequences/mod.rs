//! Sequences of requests from the served document, drawn by a seed, while a reference in memory judges every
//! answer: a tenant may see only what it stored, removed, changed and listed so far, and another tenant sees
//! none of it. A refused request leaves the bucket as it was.
//!
//! More by `KVASIR_TEST_SEQUENCES`, others by `KVASIR_TEST_SEQUENCES_FROM`.

#![allow(clippy::print_stdout, reason = "a failed sequence says which step it was")]

mod chunks;
mod contexts;
mod keys;
mod refusals;
mod registry;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kvasir_api::{LoadList, PlanResponse, Role, routes};
use kvasir_server::Layers;
use kvasir_tests::faulty::Dice;
use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

use self::{
    chunks::Chunks,
    contexts::Contexts,
    keys::KeyValues,
    refusals::{REFUSALS, Refusals},
    registry::Registry,
};
use crate::{bench::Bench, isolation::quiet};

const SEQUENCES: u64 = 6;
const STEPS: usize = 150;
/// Of a thousand steps, those whose ids are of nothing, and those of the other tenant.
const RANDOM_IDS: usize = 60;
const STRANGERS: usize = 80;
/// Steps for each of [`REFUSALS`] in between. A sequence has all of them.
const STEPS_PER_REFUSAL: usize = 4;
const _: () = assert!(STEPS / STEPS_PER_REFUSAL >= REFUSALS.len());
/// Not drawn: the stream of events has no end; the counts of jobs and the actions of whole replicas have
/// separate tests.
const LEFT_OUT: [&str; 7] =
    ["events", "start_job", "list_jobs", "get_job", "cancel_job", "get_series", "list_audited_calls"];

/// An operation of the document, with its documented statuses.
struct Operation {
    name: String,
    method: Method,
    path: String,
    statuses: BTreeSet<String>,
}

fn operations(document: &Value) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, spec) in item.as_object().expect("an item") {
            let name = spec["operationId"].as_str().expect("a name").to_owned();
            let statuses = spec["responses"].as_object().expect("responses").keys().cloned().collect();
            let method = method.to_uppercase().parse().expect("a method");
            all.push(Operation { name, method, path: path.clone(), statuses });
        }
    }
    all.retain(|operation| !LEFT_OUT.contains(&operation.name.as_str()));
    all
}

/// A step's request, and its caller.
struct Step<'a> {
    bench: &'a Bench,
    operation: &'a Operation,
    /// Whether the ids belong to nothing that exists.
    is_random: bool,
    /// Whether another tenant requests the first one's data.
    is_stranger: bool,
    /// Steps before it.
    at: usize,
}

impl Step<'_> {
    fn now(&self) -> Duration {
        Duration::from_secs(self.at as u64)
    }

    /// Whether the requested data must be found.
    fn may_find(&self) -> bool {
        !self.is_random && !self.is_stranger
    }

    /// Sends it with values for the parameters of its path, and looks whether the document knows the answer, and whether nothing
    /// was written or deleted if it is a refusal.
    async fn send(&self, parameters: &[(&str, String)], query: &str, body: Vec<u8>) -> Response {
        let mut path = self.operation.path.clone();
        for (name, value) in parameters {
            path = path.replace(&format!("{{{name}}}"), value);
        }
        assert!(!path.contains('{'), "no value for a parameter of {path}");
        let tenant = if self.is_stranger { "other" } else { "own" };
        let token = &self.bench.tokens[&(tenant, Role::Operator)];
        let path = format!("{path}{query}");
        let mut before = self.bench.store.contents();
        let answer = self.bench.guarded.send(token, self.operation.method.clone(), &path, body).await;
        let status = answer.status();
        if !status.is_success() {
            // What was sent for an upload whose commit is refused is deleted.
            let is_kept = |key: &String| parameters.iter().all(|(_, id)| !key.contains(id.as_str()));
            before.retain(|key, _| self.operation.name != "commit_upload" || is_kept(key));
            self.bench.store.assert_unchanged(&before, &format!("{status} of {path}"));
        }
        let is_known = self.operation.statuses.contains(status.as_str());
        let class = format!("{}XX", status.as_u16() / 100);
        let is_known = is_known
            || self.operation.statuses.contains(&class)
            || self.operation.statuses.contains("default");
        assert!(is_known, "{status} is not in the document: {:?}", self.operation.statuses);
        answer
    }
}

/// The body of an answer, which has this status.
async fn json<T: serde::de::DeserializeOwned>(answer: Response, status: StatusCode) -> T {
    let (had, text) = (answer.status(), answer.text().await.expect("text"));
    assert_eq!(had, status, "{text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// An answer that reports missing data.
async fn nothing(answer: Response) {
    let (status, text) = (answer.status(), answer.text().await.expect("text"));
    assert_eq!(status, StatusCode::NOT_FOUND, "{text}");
}

/// The data stored so far.
struct Reference {
    /// Loads that each tenant reported: the first, and the stranger.
    reported: [usize; 2],
    registry: Registry,
    keys: KeyValues,
    chunks: Chunks,
    contexts: Contexts,
}

impl Reference {
    async fn step(&mut self, step: &Step<'_>, dice: &mut Dice) {
        match step.operation.name.as_str() {
            "livez" | "readyz" | "metrics" | "openapi" | "get_config" | "get_members"
            | "list_plan_options" => {
                assert_eq!(step.send(&[], "", Vec::new()).await.status(), StatusCode::OK);
            }
            "report_load" => {
                let body = br#"{"slo_ms": 1, "elapsed_ms": 1, "loaded_tokens": 1, "recomputed_tokens": 0}"#;
                assert_eq!(step.send(&[], "", body.to_vec()).await.status(), StatusCode::NO_CONTENT);
                self.reported[usize::from(step.is_stranger)] += 1;
            }
            "list_loads" => {
                let listed: LoadList = json(step.send(&[], "", Vec::new()).await, StatusCode::OK).await;
                assert_eq!(listed.loads.len(), self.reported[usize::from(step.is_stranger)]);
            }
            "plan" => {
                let answer = step.send(&[], "", br#"{"model": "llama-3-8b", "tokens": 1000}"#.to_vec()).await;
                let plan: PlanResponse = json(answer, StatusCode::OK).await;
                // 32 layers of 8 heads of 128, keys and values, two bytes each.
                assert_eq!(plan.bytes.fp16, 1_000 * 131_072);
            }
            name if name.contains("opaque") => self.keys.step(step, dice).await,
            name if name.contains("context") => self.contexts.step(step, dice, &self.chunks).await,
            name if ["model", "profile", "training", "namespace"].iter().any(|part| name.contains(part)) => {
                self.registry.step(step, dice).await;
            }
            // An operation that nobody judges ends the test.
            _ => self.chunks.step(step, dice).await,
        }
    }
}

/// One sequence on a separate service. Returns the number of judged requests per operation.
async fn sequence(seed: u64) -> BTreeMap<String, u64> {
    let refusals = Refusals::new();
    let bench = Bench::start_with("other", |config| {
        quiet(config);
        refusals.configure(config);
    })
    .await;
    bench.guarded.prepare(&bench.tokens[&("other", Role::Write)]).await;
    refusals.prepare(&bench).await;
    let document = bench.guarded.service.get(routes::OPENAPI, &[]).await;
    let operations = operations(&document.json().await.expect("its JSON"));
    let mut dice = Dice::new(seed);
    let mut reference = Reference {
        reported: [0; 2],
        registry: Registry::new(),
        keys: KeyValues::default(),
        chunks: Chunks::new(bench.model, bench.root),
        contexts: Contexts::default(),
    };
    let mut judged = BTreeMap::new();
    for at in 0..STEPS {
        let operation = &operations[dice.below(operations.len())];
        let (is_random, is_stranger) = (dice.chance(RANDOM_IDS), dice.chance(STRANGERS));
        let step = Step { bench: &bench, operation, is_random, is_stranger, at };
        // Said where the test fails.
        let place = format!(
            "seed {seed}, step {at}: {}, random: {is_random}, stranger: {is_stranger}",
            operation.name
        );
        println!("{place}");
        reference.step(&step, &mut dice).await;
        if at % STEPS_PER_REFUSAL == 0 {
            refusals.refuse(&bench, seed as usize + at / STEPS_PER_REFUSAL).await;
        }
        *judged.entry(operation.name.clone()).or_insert(0) += 1;
    }
    reference.keys.all(&bench).await;
    reference.contexts.all(&bench).await;
    bench.guarded.service.stop().await;
    judged
}

fn wanted(variable: &str, otherwise: u64) -> u64 {
    let env = Layers::from_process().env;
    let set = env.iter().find(|(name, _)| name == variable);
    set.map_or(otherwise, |(_, value)| value.parse().expect("a number"))
}

#[tokio::test]
async fn sequences_of_the_documents_operations_are_as_the_reference_says() {
    let from = wanted("KVASIR_TEST_SEQUENCES_FROM", 0);
    let mut judged: BTreeMap<String, u64> = BTreeMap::new();
    for seed in from..from + wanted("KVASIR_TEST_SEQUENCES", SEQUENCES) {
        for (name, count) in sequence(seed).await {
            *judged.entry(name).or_default() += count;
        }
    }
    println!("judged: {judged:?}");
    // A draw that leaves operations out is of no use.
    assert!(
        judged.len() >= 36 && judged.values().all(|count| *count >= 3),
        "{} operations: {judged:?}",
        judged.len()
    );
}
