//! An engine for replays: its KV is a function of the tokens. Every row that a load writes into its pages can
//! therefore be checked, whatever was stored, encoded, evicted and read before.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use kvasir_client::{
    Deadline, Error, Kvasir, Session,
    pages::{BlockTable, PageRef, PageRows, PageStore, Rows},
    report::LoadError,
    tuning::{LoadOptions, RecomputeModel},
};
use kvasir_codec::{KvBuffer, KvSource, Profile};
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{BLOCK_TOKENS, KvDtype, KvLayout, LayerKv, Level, ModelSpec, Plane, Reuse};

use crate::traffic::record::{Completion, Failure};

/// Heads, and elements per head: with four layers 512 elements per token.
const HEADS: usize = 2;
const DIM: usize = 32;
/// Elements per token in the cache of an 8B model (Llama-3-8B): the unit of scales.
const ELEMENTS_8B: usize = 65_536;
/// Tokens of a page.
const PAGE_TOKENS: usize = 16;
/// Fewer tokens than this may be missing at a prompt's end: the client stores neither contexts nor tail
/// growth below 256 tokens (its `STORE_TOKENS_MIN`, `TAIL_GROWTH_MIN`), and the part stored before such a
/// tail is found in whole blocks.
const NOT_STORED_MAX: usize = 256 + BLOCK_TOKENS;
/// Time that a load is given: far more than any takes, so that none is given up for it.
const SLO: Duration = Duration::from_secs(20);
/// Why a check failed whose lookup found less than was acknowledged.
pub(super) const NOT_FOUND: &str = "not found";

/// A model whose cache has known values.
fn spec(layers: usize) -> ModelSpec {
    let layer =
        LayerKv { layout: KvLayout::Gqa { kv_heads: HEADS as u32, head_dim: DIM as u32 }, rope: None };
    ModelSpec {
        weights: "kvasir/load-test".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: Vec::new(),
        layers: vec![layer; layers],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

/// The cache of one token in one place: 8 bits of a hash, so that 16-bit floats hold it exactly.
fn element(token: u32, place: usize, dim: usize) -> f32 {
    let mixed = (token ^ (place as u32) << 24)
        .wrapping_mul(0x9e37_79b1)
        .wrapping_add((dim as u32).wrapping_mul(0x85eb_ca6b));
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x2c1b_3c6d);
    ((mixed >> 24) as i32 - 128) as f32 / 32.0
}

const fn place(layer: usize, plane: Plane, head: usize) -> usize {
    (layer * 2 + matches!(plane, Plane::V) as usize) * HEADS + head
}

/// The cache of a token sequence, computed on demand.
struct ComputedKv<'a>(&'a [u32]);

impl KvSource for ComputedKv<'_> {
    fn read(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        let place = place(layer, plane, head);
        for (token, row) in self.0[tokens].iter().zip(out.chunks_exact_mut(DIM)) {
            row.iter_mut().enumerate().for_each(|(dim, value)| *value = element(*token, place, dim));
        }
    }
}

/// Pages that compare each write with the expected value instead of keeping it.
struct VerifyingPages {
    tokens: Vec<u32>,
    rows: AtomicU64,
    wrong: AtomicU64,
}

impl PageStore for VerifyingPages {
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
        let Rows::F16(values) = rows.values() else { return false };
        let first = page.index as usize * PAGE_TOKENS + rows.slots().start;
        for (row_head, head) in rows.heads().enumerate() {
            let place = place(rows.layer(), rows.plane(), head);
            for nth in 0..values.tokens() {
                let row = values.row(row_head, nth);
                let right = self.tokens.get(first + nth).is_some_and(|token| {
                    row.iter().enumerate().all(|(dim, value)| value.to_f32() == element(*token, place, dim))
                });
                self.rows.fetch_add(1, Ordering::Relaxed);
                self.wrong.fetch_add(u64::from(!right), Ordering::Relaxed);
            }
        }
        true
    }
}

/// State shared by replays.
pub(crate) struct Engine {
    kvasir: Kvasir,
    layers: usize,
    /// Requested and loaded tokens, and stored bytes.
    asked: AtomicU64,
    loaded: AtomicU64,
    stored_bytes: AtomicU64,
}

/// A profile that keeps the cache bit for bit.
fn profile(layers: usize) -> Result<Arc<Profile>> {
    // Small ids: the profile's token table reaches to the largest, and these numbers are not to be predicted from tokens anyway.
    let tokens: Vec<u32> = (0..512).collect();
    let kv = KvBuffer::from_source(&spec(layers), tokens.len(), &ComputedKv(&tokens));
    Ok(Arc::new(train(
        &spec(layers),
        &[TrainingContext { first_position: 0, tokens, kv }],
        &Recipe::Exact,
        0.01,
        &mut |_, _| (),
    )?))
}

impl Engine {
    /// Registers model and profile.
    pub(crate) async fn connect(url: &str, token: Option<&str>, layers: usize) -> Result<Self> {
        let mut builder =
            Kvasir::builder(url).model(spec(layers)).profile(profile(layers)?).namespace("load-test");
        if let Some(token) = token {
            builder = builder.token(token);
        }
        // An engine on which computing never pays, so that it loads everything that is stored.
        let builder = builder.recompute_model(RecomputeModel::from_seconds(10.0, 0.1, 0.0));
        let kvasir = builder.connect().await?;
        let zero = || AtomicU64::new(0);
        Ok(Self { kvasir, layers, asked: zero(), loaded: zero(), stored_bytes: zero() })
    }

    /// The figures of several replays, by name.
    pub(crate) fn figures(engines: &[Self], name: &str) -> Vec<(String, f64)> {
        let of = |count: fn(&Self) -> &AtomicU64| {
            engines.iter().map(|engine| count(engine).load(Ordering::Relaxed) as f64).sum::<f64>()
        };
        let asked = of(|engine| &engine.asked);
        let layers = engines.first().map_or(1, |engine| engine.layers);
        vec![
            (format!("{name}.tokens"), asked),
            (format!("{name}.tokens_loaded_share"), of(|engine| &engine.loaded) / asked.max(1.0)),
            (format!("{name}.stored_mb"), of(|engine| &engine.stored_bytes) / 1e6),
            (format!("{name}.cache_scale"), (ELEMENTS_8B / (layers * 2 * HEADS * DIM)) as f64),
        ]
    }

    /// A prompt: the stored part is loaded and checked, the rest "computed" and stored.
    pub(crate) async fn prompt(&self, tokens: Vec<u32>) -> Result<Completion, Failure> {
        let failed = |error: Error| Failure::new(cause(&error));
        let session = self.look_up(&tokens).await?;
        let found = session.matched_tokens() as usize;
        let mut bytes = 0;
        if found > 1 {
            bytes += self.load(&session, SLO).await?;
        }
        let source = ComputedKv(&tokens);
        let report = session.save_now(&source, tokens.len(), |_| ()).await.map_err(failed)?;
        self.asked.fetch_add(tokens.len() as u64, Ordering::Relaxed);
        self.loaded.fetch_add(found as u64, Ordering::Relaxed);
        self.stored_bytes.fetch_add(report.bytes(), Ordering::Relaxed);
        Ok(Completion { bytes: bytes + report.bytes(), ..Completion::default() })
    }

    /// Whether an acknowledged prompt is still stored, except for the part that the client does not store by
    /// design, with every row correct. Its load is given a time.
    pub(crate) async fn check(&self, tokens: &[u32], slo: Duration) -> Result<u64, Failure> {
        let session = self.look_up(tokens).await?;
        let found = session.matched_tokens() as usize;
        if found + NOT_STORED_MAX <= tokens.len() {
            return Err(Failure::new(NOT_FOUND));
        }
        if found > 1 { self.load(&session, slo).await } else { Ok(0) }
    }

    async fn look_up(&self, tokens: &[u32]) -> Result<Session, Failure> {
        let mut session = self.kvasir.session(tokens).without_lookup().await;
        session.lookup().await.map_err(|error| Failure::new(cause(&error)))?;
        Ok(session)
    }

    /// Loads what a session matches into pages that check every row.
    async fn load(&self, session: &Session, slo: Duration) -> Result<u64, Failure> {
        let tokens = session.tokens();
        let matched = session.matched_tokens().min(tokens.len() as u64 - 1);
        let pages = Arc::new(VerifyingPages { tokens: tokens.to_vec(), rows: 0.into(), wrong: 0.into() });
        let refs =
            (0..tokens.len().div_ceil(PAGE_TOKENS) as u32).map(|index| PageRef { index, generation: 0 });
        let store: Arc<dyn PageStore> = Arc::<VerifyingPages>::clone(&pages);
        let failed = |error: Error| Failure::new(cause(&error));
        let table = BlockTable::new(store, refs.collect::<Vec<_>>(), PAGE_TOKENS).map_err(failed)?;
        let deadline = Deadline::within(slo);
        let options = LoadOptions { deadline, last_token: false, ..LoadOptions::at_level(Level(u8::MAX)) };
        let loaded = session.load([table], options).map_err(failed)?.finish().await;
        let report = loaded.into_report().ok_or_else(|| Failure::new("the load did not complete"))?;
        let (rows, wrong) = (pages.rows.load(Ordering::Relaxed), pages.wrong.load(Ordering::Relaxed));
        if wrong > 0 {
            return Err(Failure::wrong(format!("{wrong} of {rows} rows are wrong")));
        }
        if report.loaded_tokens() < matched || rows < matched * (self.layers * 2 * HEADS) as u64 {
            let why = match report.failures.first() {
                Some(failure) => match &failure.error {
                    LoadError::Read(error) => format!(": {}", cause(error)),
                    LoadError::Damaged { .. } => ": damaged".to_owned(),
                    _ => ": no object of these tokens".to_owned(),
                },
                None if report.gave_up => format!(": given up, {} s are allowed", slo.as_secs()),
                None => String::new(),
            };
            return Err(Failure::new(format!(
                "the load did not deliver everything that the lookup found{why}"
            )));
        }
        Ok(report.bytes)
    }
}

/// A bounded number of causes.
fn cause(error: &Error) -> String {
    match error {
        Error::Api(error) => format!("{} {}", error.status, error.code),
        Error::Transport(_) => "connection broke".into(),
        Error::Slow { .. } => "an answer that came too slowly".into(),
        Error::Protocol { .. } => "an answer that makes no sense".into(),
        _ => "client".into(),
    }
}
