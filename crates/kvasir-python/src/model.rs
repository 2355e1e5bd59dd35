//! A model in a service, and the sessions over its prompts.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use kvasir_client::{
    Deadline, Kvasir, Loaded, SaveTicket, Session as ClientSession, SessionRequest,
    pages::Shard,
    report::{ChunkOutcome, SaveOutcome, SaveReport},
    tuning::LoadOptions,
};
use kvasir_types::{Level, LevelError, Loss, ModelSpec, Quality, TokenRange};
use pyo3::prelude::*;
use pyo3_async_runtimes::tokio::get_runtime;
use serde_json::json;
use tokio::sync::{RwLock, watch};

use crate::{
    error::{Failure, exception_of},
    profile::Profile,
    runtime::{check_process, run, wait},
    spec::Spec,
    tensors::{Tensors, Use},
};

/// A registered model.
#[pyclass(frozen, module = "kvasir._kvasir")]
pub(crate) struct Model(Kvasir);

impl Model {
    pub(crate) const fn new(kvasir: Kvasir) -> Self {
        Self(kvasir)
    }
}

/// A number of seconds from Python.
pub(crate) fn seconds(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds).map_err(|error| {
        Failure::input("invalid_setting", format!("{seconds} s: {error}"), "correct the setting")
    })
}

fn deadline(after: Option<f64>) -> Result<Deadline, Failure> {
    Ok(after.map(seconds).transpose()?.map_or_else(Deadline::none, Deadline::within))
}

/// A session over tokens, with the salt and adapter of its users.
fn request<'a>(
    kvasir: &'a Kvasir,
    tokens: &'a [u32],
    salt: Option<Vec<u8>>,
    adapter: Option<String>,
) -> SessionRequest<'a> {
    let mut request = kvasir.session(tokens);
    if let Some(salt) = salt {
        request = request.salt(salt);
    }
    if let Some(adapter) = adapter {
        request = request.adapter(adapter);
    }
    request
}

#[pymethods]
impl Model {
    #[getter]
    fn spec(&self) -> Spec {
        Spec(Arc::clone(self.0.spec()))
    }

    /// The profile of its caches, if it is already known.
    #[getter]
    fn profile(&self) -> Option<Profile> {
        self.0.profile().map(Profile)
    }

    /// Reports how long computing tokens took.
    fn observe_prefill(&self, start: u64, end: u64, took: f64) -> Result<(), Failure> {
        self.0.observe_prefill(TokenRange { start, end }, seconds(took)?);
        Ok(())
    }

    /// Expected time to compute tokens, in seconds.
    fn prefill_seconds(&self, start: u64, end: u64) -> f64 {
        self.0.costs().recompute.predict(TokenRange { start, end }).as_secs_f64()
    }

    /// Opens a session and looks its tokens up.
    #[pyo3(signature = (tokens, kind, turn, salt, adapter, timeout, is_async))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of one method of Python's, in its order")]
    fn session<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
        kind: Option<&str>,
        turn: u32,
        salt: Option<Vec<u8>>,
        adapter: Option<String>,
        timeout: Option<f64>,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let kind = kind.map(str::parse).transpose().map_err(|error: kvasir_types::NameError| {
            Failure::input("invalid_setting", format!("kind: {error}"), "correct the setting")
        })?;
        let (kvasir, deadline) = (self.0.clone(), deadline(timeout)?);
        run(py, is_async, async move {
            let mut request = request(&kvasir, &tokens, salt, adapter).turn(turn).deadline(deadline);
            if let Some(kind) = kind {
                request = request.class(kind);
            }
            let session = request.await;
            Ok(Session::new(&kvasir, session))
        })
    }

    /// Looks tokens up in the background.
    fn look_up(
        &self,
        tokens: Vec<u32>,
        salt: Option<Vec<u8>>,
        adapter: Option<String>,
        timeout: f64,
    ) -> PyResult<Lookup> {
        check_process()?;
        let (kvasir, timeout, found) = (self.0.clone(), seconds(timeout)?, Arc::new(OnceLock::new()));
        let answer = Arc::clone(&found);
        get_runtime().spawn(async move {
            let begun = Instant::now();
            let session = request(&kvasir, &tokens, salt, adapter).deadline(Deadline::within(timeout)).await;
            let error = session.lookup_error().map(ToString::to_string);
            let matched = error.is_none().then(|| session.matched_tokens());
            let found = (matched, begun.elapsed().as_secs_f64(), error, session.below_floor_tokens());
            // Only set here.
            let _ = answer.set((found, Session::new(&kvasir, session)));
        });
        Ok(Lookup(found))
    }

    /// Waits until all saves have ended.
    fn drain<'py>(&self, py: Python<'py>, is_async: bool) -> PyResult<Bound<'py, PyAny>> {
        let kvasir = self.0.clone();
        run(py, is_async, async move {
            kvasir.drain().await;
            Ok(())
        })
    }
}

/// Leading stored tokens, `None` if the service did not respond; the duration in seconds; the error; stored tokens behind
/// them that are below the model's quality.
type Found = (Option<u64>, f64, Option<String>, u64);

/// A background lookup: it continues whether or not it is waited for.
#[pyclass(frozen, module = "kvasir._kvasir")]
pub(crate) struct Lookup(Arc<OnceLock<(Found, Session)>>);

#[pymethods]
impl Lookup {
    /// The result; `None` while it runs.
    #[getter]
    fn found(&self) -> Option<Found> {
        self.0.get().map(|(found, _)| found.clone())
    }

    /// The session of the lookup; `None` while it runs.
    #[getter]
    fn session(&self) -> Option<Session> {
        self.0.get().map(|(_, session)| session.clone())
    }
}

/// One request, or one conversation.
#[pyclass(frozen, module = "kvasir._kvasir")]
#[derive(Clone)]
pub(crate) struct Session {
    spec: Arc<ModelSpec>,
    matched: u64,
    below_quality: u64,
    session: Arc<RwLock<ClientSession>>,
}

impl Session {
    fn new(kvasir: &Kvasir, session: ClientSession) -> Self {
        let (matched, below_quality) = (session.matched_tokens(), session.below_floor_tokens());
        let (spec, session) = (Arc::clone(kvasir.spec()), Arc::new(RwLock::new(session)));
        Self { spec, matched, below_quality, session }
    }

    /// The part of the cache that one of several tensor-parallel ranks holds.
    fn shard(&self, rank: Option<(usize, usize)>) -> Result<Shard, Failure> {
        let Some((rank, of)) = rank else { return Ok(Shard::ALL) };
        let mut planes = self.spec.layers.iter().flat_map(|layer| layer.layout.planes());
        let heads = planes.find_map(|(heads, _)| (heads > 0).then_some(heads)).unwrap_or(0);
        if rank >= of {
            let message = format!("rank is {rank} of {of}");
            return Err(Failure::input("invalid_setting", message, "ranks count from 0"));
        }
        Ok(Shard::tensor_parallel(rank, of, heads))
    }
}

#[pymethods]
impl Session {
    #[getter]
    const fn matched(&self) -> u64 {
        self.matched
    }

    /// Stored tokens behind the matched ones that are below the model's quality.
    #[getter]
    const fn below_quality(&self) -> u64 {
        self.below_quality
    }

    /// Why the lookup failed.
    fn lookup_error(&self, py: Python<'_>) -> Option<PyErr> {
        let session = py.detach(|| self.session.blocking_read());
        session.lookup_error().map(|error| exception_of(py, error))
    }

    fn extend(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<()> {
        check_process()?;
        let session = Arc::clone(&self.session);
        wait(py, async move { session.write().await.extend(&tokens) })
    }

    /// Reports the loss of rows that the engine already had.
    fn reused(&self, py: Python<'_>, kl: f64, error: u8, hops: u8) -> PyResult<()> {
        check_process()?;
        let loss = Loss { kl, error: LevelError::from_byte(error), hops };
        py.detach(|| self.session.blocking_read()).reused(loss);
        Ok(())
    }

    /// Loads the match into tensors, optionally those of one tensor-parallel rank, and returns a report as
    /// JSON.
    #[pyo3(signature = (into, deadline, level, present, rank, soft_quality, is_async))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of one method of Python's, in its order")]
    fn load<'py>(
        &self,
        py: Python<'py>,
        into: &Bound<'py, PyAny>,
        deadline: Option<f64>,
        level: Option<u8>,
        present: u64,
        rank: Option<(usize, usize)>,
        soft_quality: Option<&str>,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let soft_floor = soft_quality
            .map(str::parse::<Quality>)
            .transpose()
            .map_err(|error| Failure::input("invalid_setting", error, "correct soft_quality"))?;
        let shard = self.shard(rank)?;
        let spec = shard.part_of(&self.spec);
        let tensors = Tensors::borrow(&spec, into, self.matched as usize, Use::Write)?;
        let table = tensors.table()?.with_shard(shard);
        let deadline = self::deadline(deadline)?;
        let session = Arc::clone(&self.session);
        run(py, is_async, async move {
            let options = match level {
                Some(level) => LoadOptions::at_level(Level(level)),
                None => LoadOptions::from(deadline),
            };
            let options = LoadOptions { deadline, soft_floor, present, ..options };
            let load = session.read().await.load([table], options)?;
            loaded_json(&load.finish().await)
        })
    }

    /// Saves from tensors without a copy, and waits for the result. Returns a report as JSON.
    fn save<'py>(
        &self,
        py: Python<'py>,
        kv: &Bound<'py, PyAny>,
        tokens: usize,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tensors = Tensors::borrow(&self.spec, kv, tokens, Use::Read)?;
        let session = Arc::clone(&self.session);
        run(py, is_async, async move {
            let session = session.read().await;
            saved_json(&session.save_now(&*tensors, tokens, |_| ()).await?)
        })
    }

    /// Saves a copy of the tokens that are not stored, in the background.
    fn save_in_background(&self, py: Python<'_>, kv: &Bound<'_, PyAny>, tokens: usize) -> PyResult<Save> {
        check_process()?;
        let tensors = Tensors::borrow(&self.spec, kv, tokens, Use::Read)?;
        let session = Arc::clone(&self.session);
        let ticket = wait(py, async move { session.read().await.save(&*tensors, tokens) })?;
        Ok(Save::of(ticket))
    }
}

/// A background save: it continues whether or not it is waited for.
#[pyclass(frozen, module = "kvasir._kvasir")]
pub(crate) struct Save(watch::Receiver<Option<Result<String, Arc<kvasir_client::Error>>>>);

impl Save {
    fn of(ticket: SaveTicket) -> Self {
        let (sender, receiver) = watch::channel(None);
        get_runtime().spawn(async move {
            let outcome = match ticket.outcome().await {
                SaveOutcome::Saved(report) => saved_json(&report).map_err(|_| unreadable()),
                SaveOutcome::Failed(error) => Err(error),
                SaveOutcome::Refused(refusal) => Ok(json!({ "refused": refusal.to_string() }).to_string()),
                _ => Err(unreadable()),
            };
            // The receiver may be gone.
            let _ = sender.send(Some(outcome.map_err(Arc::new)));
        });
        Self(receiver)
    }
}

fn unreadable() -> kvasir_client::Error {
    kvasir_client::Error::Protocol { what: "the outcome of a save is unknown".to_owned() }
}

#[pymethods]
impl Save {
    #[getter]
    fn is_done(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Waits for the report, as JSON.
    fn wait<'py>(&self, py: Python<'py>, is_async: bool) -> PyResult<Bound<'py, PyAny>> {
        let mut receiver = self.0.clone();
        run(py, is_async, async move {
            let outcome = match receiver.wait_for(Option::is_some).await {
                Ok(outcome) => outcome.clone(),
                Err(_) => None,
            };
            match outcome {
                Some(Ok(report)) => Ok(report),
                Some(Err(error)) => Err(Failure::Shared(error)),
                None => Err(unreadable().into()),
            }
        })
    }
}

fn range(range: TokenRange) -> [u64; 2] {
    [range.start, range.end]
}

/// A range of tokens, and the loss of its rows.
fn loss_json((tokens, loss): (TokenRange, Loss)) -> serde_json::Value {
    json!([range(tokens), [loss.kl, loss.error.to_byte(), loss.hops]])
}

fn loaded_json(loaded: &Loaded) -> Result<String, Failure> {
    let report = loaded.report();
    let times = report.map(|report| report.times).unwrap_or_default();
    let chunks: Vec<_> = (report.iter().flat_map(|report| &report.chunks))
        .map(|chunk| {
            json!({
                "tokens": range(chunk.tokens),
                "level": chunk.level.map(|level| level.0),
                "kl": chunk.loss,
                "bytes": chunk.bytes,
            })
        })
        .collect();
    let failures: Vec<_> =
        report.iter().flat_map(|report| &report.failures).map(|failure| failure.error.to_string()).collect();
    crate::json(&json!({
        "loaded_tokens": loaded.loaded_tokens(),
        "prefix_tokens": loaded.prefix_tokens(),
        "missing": loaded.missing().iter().map(|missing| range(*missing)).collect::<Vec<_>>(),
        "kl": loaded.loss().kl,
        "losses": loaded.losses().map(loss_json).collect::<Vec<_>>(),
        "seconds": loaded.elapsed().as_secs_f64(),
        "network_seconds": times.network.as_secs_f64(),
        "decode_seconds": times.decode.as_secs_f64(),
        "wait_seconds": times.wait.as_secs_f64(),
        "bytes": report.map_or(0, |report| report.bytes),
        "gave_up": report.is_some_and(|report| report.gave_up),
        "chunks": chunks,
        "failures": failures,
    }))
}

fn saved_json(report: &SaveReport) -> Result<String, Failure> {
    let chunk = |chunk: &kvasir_client::report::ChunkSaveReport| {
        let (outcome, bytes) = match chunk.outcome {
            ChunkOutcome::Stored { bytes, .. } => ("stored", bytes),
            ChunkOutcome::AlreadyThere => ("already_there", 0),
            ChunkOutcome::TooLossy => ("too_lossy", 0),
        };
        json!({
            "tokens": range(chunk.tokens),
            "seq_hash": chunk.seq_hash.to_string(),
            "outcome": outcome,
            "bytes": bytes,
        })
    };
    crate::json(&json!({
        "chunks": report.chunks.iter().map(chunk).collect::<Vec<_>>(),
        "bytes": report.bytes(),
        "seconds": report.elapsed.as_secs_f64(),
        "refused": null,
    }))
}
