//! The paper's table: 8-bit, ours, X, ours on X. Coded caches are stored in a service and loaded from it.

use std::sync::Arc;

use crate::budget::{SurprisalCompressor, ThinClass, ThinnedStore, TokenPolicy};
use kvasir_client::tuning::LoadOptions;
use kvasir_codec::{KvBuffer, Profile};
use kvasir_engine::{Model, PagedKv, TINY_PROFILE};
use kvasir_train::{BasisRecipe, Recipe, TrainingContext, train};
use kvasir_types::{Level, Name, Thinning};
use tokio::runtime::Runtime;

use super::case::{BudgetRow, Case, SQUEEZE_P, Tally, policies};
use kvasir_cli::{
    demo::{Plain, Service, into_pages},
    error::{CliError, CliResult},
    progress::Step,
    service::{client_error, look_up},
    shipped::engine_error,
};

/// The settings of the table.
pub(super) struct Settings<'a> {
    pub(super) training: &'a [Vec<u32>],
    pub(super) prefix: usize,
    pub(super) share: f64,
    pub(super) quick: bool,
}

pub(super) fn compose(
    runtime: &Runtime,
    model: &Model,
    cases: &[Case<'_>],
    settings: &Settings<'_>,
) -> CliResult<Vec<BudgetRow>> {
    let folder = tempfile::tempdir().map_err(CliError::internal)?;
    let service = Service::start(runtime, folder.path())?;
    let url = format!("http://{}", service.address);
    let kvasir = Testbed { runtime, url, namespace: "budgets".parse().map_err(CliError::internal)? };
    let step = Step::start("whole caches, and dropped text");
    let mut rows = whole(&kvasir, model, cases)?;
    rows.extend(dropped_text(&kvasir, model, cases, settings.share)?);
    step.done("stored and loaded");
    let training = settings
        .training
        .iter()
        .map(|window| Case::new(model, window, settings.prefix))
        .collect::<Result<Vec<_>, _>>();
    let training = training.map_err(engine_error)?;
    for policy in policies(model).map_err(engine_error)? {
        let squeezed = if policy.name() == "fastgen" { vec![None] } else { vec![None, Some(SQUEEZE_P)] };
        for p in squeezed {
            if settings.quick && p.is_some() && policy.per_head() {
                continue;
            }
            let step = Step::start(format!("{}{}", policy.name(), p.map_or("", |_| ", squeezed")));
            let thinned = Thin { policy: &*policy, share: settings.share, p };
            rows.extend(thinned.rows(&kvasir, model, cases, &training)?);
            step.done("stored and loaded");
        }
    }
    service.stop(runtime)?;
    Ok(rows)
}

struct Testbed<'a> {
    runtime: &'a Runtime,
    url: String,
    namespace: Name,
}

impl Testbed<'_> {
    fn shipped(&self, model: &Model) -> CliResult<(Arc<Profile>, kvasir_client::Kvasir)> {
        let profile = Arc::new(Profile::from_bytes(TINY_PROFILE).map_err(CliError::internal)?);
        let builder = kvasir_client::Kvasir::builder(self.url.as_str())
            .model(Arc::clone(model.spec()))
            .profile(Arc::clone(&profile))
            .quality(kvasir_client::QualityFloor::Adaptive)
            .namespace(self.namespace.as_str());
        let kvasir = self.runtime.block_on(builder.connect()).map_err(client_error)?;
        Ok((profile, kvasir))
    }

    /// A context, back from the service at every level, with its bytes.
    fn there_and_back(
        &self,
        model: &Model,
        (client, levels): (&kvasir_client::Kvasir, usize),
        tokens: &[u32],
        kv: &PagedKv,
    ) -> CliResult<Vec<(PagedKv, f64)>> {
        let session = self.runtime.block_on(async {
            let session = client.session(tokens).without_lookup().await;
            session.save_now(kv, tokens.len(), |_| ()).await.map_err(client_error)?;
            look_up(client, tokens).await
        })?;
        let load = |level: usize| {
            let mut pages = model.new_kv().map_err(engine_error)?;
            pages.reserve(tokens.len()).map_err(CliError::internal)?;
            let table = pages.load_table().map_err(CliError::internal)?;
            let options = LoadOptions::at_level(Level(level as u8));
            let load = session.load([table], options).map_err(client_error)?;
            if !self.runtime.block_on(load.finish()).missing().is_empty() {
                return Err(CliError::internal("a load left tokens out"));
            }
            pages.commit(tokens.len()).map_err(CliError::internal)?;
            let bytes = session.chunks().iter().filter_map(|chunk| chunk.level_bytes.get(level)).sum::<u64>();
            Ok((pages, bytes as f64))
        };
        (0..levels).map(load).collect()
    }
}

/// The whole cache: 8 bits, and ours at every level.
fn whole(kvasir: &Testbed<'_>, model: &Model, cases: &[Case<'_>]) -> CliResult<Vec<BudgetRow>> {
    let (profile, client) = kvasir.shipped(model)?;
    let (mut int8, mut ours) = (Tally::default(), Vec::new());
    ours.resize_with(profile.level_count(), Tally::default);
    for case in cases {
        let (pages, bytes) = rounded(model, case)?;
        int8.add(case, &case.logits(model, &pages, None).map_err(engine_error)?, 1.0, bytes);
        let levels = kvasir.there_and_back(model, (&client, ours.len()), case.prefix, &case.kv)?;
        for ((pages, bytes), tally) in levels.iter().zip(&mut ours) {
            tally.add(case, &case.logits(model, pages, None).map_err(engine_error)?, 1.0, *bytes);
        }
    }
    let mut rows = vec![int8.row("none", "8-bit", 1.0, None)];
    rows.extend(levels(&ours, "none", 1.0, None));
    Ok(rows)
}

fn levels(tallies: &[Tally], method: &str, share: f64, p: Option<f64>) -> Vec<BudgetRow> {
    let row = |(level, tally): (usize, &Tally)| tally.row(method, &format!("level {level}"), share, p);
    tallies.iter().enumerate().map(row).collect()
}

/// The cache with every row rounded to 8 bits, and its bytes.
fn rounded(model: &Model, case: &Case<'_>) -> CliResult<(PagedKv, f64)> {
    let tokens = case.prefix.len();
    let packed = Plain::Int8.pack(model.spec(), tokens, &case.kv);
    let pages = into_pages(model, tokens, |sink| {
        Plain::Int8.unpack(model.spec(), tokens, &packed, sink).map_err(CliError::internal)
    })?;
    Ok((pages, packed.len() as f64))
}

/// A prompt without the tokens that the model found easiest to predict; its cache is an ordinary cache.
fn dropped_text(
    kvasir: &Testbed<'_>,
    model: &Model,
    cases: &[Case<'_>],
    share: f64,
) -> CliResult<Vec<BudgetRow>> {
    let (profile, client) = kvasir.shipped(model)?;
    let (mut int8, mut ours) = (Tally::default(), Vec::new());
    ours.resize_with(profile.level_count(), Tally::default);
    for case in cases {
        let shorter = SurprisalCompressor { model }.compress(case.prefix, share).map_err(engine_error)?;
        let kv = model.calculate_kv(&shorter).map_err(engine_error)?;
        let kept = shorter.len() as f64 / case.prefix.len() as f64;
        let packed = Plain::Int8.pack(model.spec(), shorter.len(), &kv);
        let pages = into_pages(model, shorter.len(), |sink| {
            Plain::Int8.unpack(model.spec(), shorter.len(), &packed, sink).map_err(CliError::internal)
        })?;
        int8.add(case, &case.logits(model, &pages, None).map_err(engine_error)?, kept, packed.len() as f64);
        for ((pages, bytes), tally) in
            kvasir.there_and_back(model, (&client, ours.len()), &shorter, &kv)?.iter().zip(&mut ours)
        {
            tally.add(case, &case.logits(model, pages, None).map_err(engine_error)?, kept, *bytes);
        }
    }
    let mut rows = vec![int8.row("text_dropping", "8-bit", share, None)];
    rows.extend(levels(&ours, "text_dropping", share, None));
    Ok(rows)
}

/// A policy at one budget.
struct Thin<'a> {
    policy: &'a dyn TokenPolicy,
    share: f64,
    p: Option<f64>,
}

impl Thin<'_> {
    fn thinning(&self) -> Thinning {
        let squeezed = self.p.map_or_else(String::new, |p| format!(", squeezed p={p}"));
        Thinning {
            method: self.policy.name().to_owned(),
            parameters: format!("share={}{squeezed}", self.share),
        }
    }

    fn rows(
        &self,
        kvasir: &Testbed<'_>,
        model: &Model,
        cases: &[Case<'_>],
        training: &[Case<'_>],
    ) -> CliResult<Vec<BudgetRow>> {
        let classes = ThinClass::of(model.spec(), self.policy);
        let profiles = classes
            .iter()
            .map(|class| self.profile(model, class, training))
            .collect::<CliResult<Vec<_>>>()?;
        let levels_count = profiles.iter().map(|profile| profile.level_count()).min().unwrap_or(0);
        let thinning = self.thinning();
        let connect = ThinnedStore::connect(
            &kvasir.url,
            (model.spec(), &thinning),
            &kvasir.namespace,
            classes.clone(),
            profiles,
        );
        let store = kvasir.runtime.block_on(connect).map_err(CliError::internal)?;
        let (mut int8, mut ours) = (Tally::default(), Vec::new());
        ours.resize_with(levels_count, Tally::default);
        for case in cases {
            let keep = case.keep(self.policy, self.share, self.p);
            let (pages, bytes) = rounded(model, case)?;
            let positions: usize = classes.iter().map(|c| 4 * keep.head(c.layer, c.heads.start).len()).sum();
            let lossy = case.logits(model, &pages, Some(&keep)).map_err(engine_error)?;
            int8.add(case, &lossy, keep.share(), bytes * keep.share() + positions as f64);
            kvasir.runtime.block_on(store.store(case.prefix, &case.kv, &keep)).map_err(CliError::internal)?;
            for (level, tally) in ours.iter_mut().enumerate() {
                let mut found = None;
                let pages = into_pages(model, case.prefix.len(), |sink| {
                    let load = store.load(case.prefix, Level(level as u8), sink);
                    found = kvasir.runtime.block_on(load).map_err(CliError::internal)?;
                    Ok(())
                })?;
                let (loaded, bytes) = found.ok_or_else(|| CliError::internal("a class is not stored"))?;
                if loaded != keep {
                    return Err(CliError::internal("the loaded tokens differ from the stored ones"));
                }
                let lossy = case.logits(model, &pages, Some(&loaded)).map_err(engine_error)?;
                tally.add(case, &lossy, loaded.share(), bytes as f64);
            }
        }
        let mut rows = vec![int8.row(self.policy.name(), "8-bit", self.share, self.p)];
        rows.extend(levels(&ours, self.policy.name(), self.share, self.p));
        Ok(rows)
    }

    /// A basis over the rows of one class. Positions say nothing about values: no token predictor.
    fn profile(&self, model: &Model, class: &ThinClass, training: &[Case<'_>]) -> CliResult<Arc<Profile>> {
        let spec = class.spec(model.spec(), &self.thinning());
        let context = |case: &Case<'_>| {
            let keep = case.keep(self.policy, self.share, self.p);
            let kept = keep.head(class.layer, class.heads.start);
            let tokens = class.slots(case.prefix, kept);
            let kv = KvBuffer::from_source(&spec, tokens.len(), &class.rows(&case.kv, kept));
            TrainingContext { first_position: 0, tokens, kv }
        };
        let contexts: Vec<_> = training.iter().map(context).collect();
        let recipe = Recipe::Basis(BasisRecipe {
            token_factors: [0, 0],
            exact_tokens: Some(0),
            ..BasisRecipe::default()
        });
        let profile = train(&spec, &contexts, &recipe, 0.01, &mut |_, _| ()).map_err(CliError::internal)?;
        Ok(Arc::new(profile))
    }
}
