//! The codecs under comparison.

use std::sync::Arc;

use kvasir_codec::{Profile, exact_starter};
use kvasir_train::{Recipe, TrainingContext, train, train_at_scale};
use kvasir_types::ModelSpec;

use crate::{
    BenchError, KvCodec,
    codecs::{
        ByName, Calibration, KvtcLike, Lmcache, Plain, ProfileCodec, ScaledFloats, Storage, Sweep,
        SymbolsThroughDeflate, TurboquantLike, Uniform, Zeros,
    },
};

/// Variant of profiles within the budget.
pub const BUDGET: &str = "budget";
/// Variant of profiles beyond it.
pub(super) const UNLIMITED: &str = "unlimited";
/// Variant of profiles without a basis.
pub(super) const DIRECT: &str = "direct";
/// Variant of the profile that a client makes from a model's first chunk.
pub const FIRST: &str = "first";
/// Variant of the one that `kvasir profile retrain` makes.
pub const RETRAINED: &str = "retrained";
/// The same with `--parameters`: within a tenth of the weights' bytes.
pub const RETRAINED_BUDGET: &str = "retrained_budget";

/// Error of the direct profile's finest level: that of the published tables. An exact profile quantises nothing.
const DIRECT_NMSE: f64 = 0.01;
/// The paper's bins and half of them, three levels at 3:1 each.
const CACHEGEN_SCALES: [f32; 2] = [1.0, 0.5];

/// The parts of the suite.
#[derive(Debug, Clone, Default)]
pub struct SuiteOptions {
    /// Our profiles; each is a variant by its kind and size.
    pub profiles: Vec<Arc<Profile>>,
    /// Profiles that a service has of the model, with their variants: the first one, then others.
    pub service: Vec<(&'static str, Arc<Profile>)>,
    /// Largest profile that is within the budget.
    pub budget_bytes: u64,
    /// Names of the codecs to run, out of [`CODECS`]; all if empty.
    pub codecs: Vec<String>,
    /// Variants of `kvasir` to run, out of [`VARIANTS`]; the first three if empty.
    pub variants: Vec<String>,
}

/// Every name that [`SuiteOptions::codecs`] may have.
pub const CODECS: [&str; 18] = [
    "kvasir",
    "kvasir_names",
    "kvasir_deflate",
    "kvtc_like",
    "cachegen_paper",
    "lmcache",
    "uniform8",
    "uniform4",
    "uniform3",
    "fp8",
    "nvfp4",
    "turboquant_like",
    "lossless",
    "lossless_first",
    "raw16",
    "zstd19",
    "zstd19_split",
    "zeros",
];

/// Every name that [`SuiteOptions::variants`] may have.
pub const VARIANTS: [&str; 6] = [BUDGET, UNLIMITED, DIRECT, FIRST, RETRAINED, RETRAINED_BUDGET];

impl SuiteOptions {
    /// Whether a codec runs.
    pub fn wants(&self, codec: &str) -> bool {
        self.codecs.is_empty() || self.codecs.iter().any(|name| name == codec)
    }

    /// Whether a variant of `kvasir` runs.
    pub fn wants_variant(&self, variant: &str) -> bool {
        if self.variants.is_empty() {
            return VARIANTS[..3].contains(&variant);
        }
        self.variants.iter().any(|name| name == variant)
    }
}

/// Every codec under comparison, calibrated on the same contexts.
#[derive(Debug)]
pub struct Suite {
    ours: Vec<ProfileCodec>,
    service: Vec<ProfileCodec>,
    cachegen: Option<Sweep>,
    kvtc: Vec<KvtcLike>,
    lossless: Vec<ProfileCodec>,
    options: SuiteOptions,
}

impl Suite {
    /// Trains what is not given: a direct profile, the paper's CacheGen and the KVTC-like codecs, one with the bytes of each of
    /// our profiles with a basis.
    ///
    /// # Errors
    /// [`BenchError`]: training fails, or a profile is another model's.
    pub fn new(
        spec: &Arc<ModelSpec>,
        contexts: &[TrainingContext],
        options: &SuiteOptions,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Result<Self, BenchError> {
        let mut ours: Vec<ProfileCodec> = Vec::new();
        let ours_run = options.wants("kvasir") || options.wants("kvasir_deflate");
        let kvtc_runs = options.wants("kvtc_like");
        for profile in &options.profiles {
            let kind = kind(profile, options.budget_bytes);
            if options.wants_variant(kind) {
                let variant = numbered(kind, &ours);
                ours.push(ProfileCodec::new("kvasir", variant, spec, Arc::clone(profile))?);
            }
        }
        let service = options.service.iter();
        let service = service
            .map(|(variant, profile)| ProfileCodec::new("kvasir", *variant, spec, Arc::clone(profile)))
            .collect::<Result<Vec<_>, _>>()?;
        if ours_run && options.wants_variant(DIRECT) && ours.iter().all(|codec| codec.variant() != DIRECT) {
            let profile = train(spec, contexts, &Recipe::Direct, DIRECT_NMSE, &mut |what, at| {
                progress(what, at * 0.3)
            })?;
            ours.push(ProfileCodec::new("kvasir", DIRECT, spec, Arc::new(profile))?);
        }
        let mut cachegen = Vec::new();
        for factor in CACHEGEN_SCALES.into_iter().filter(|_| options.wants("cachegen_paper")) {
            let mut told = |what: &str, at: f32| progress(what, 0.3 + at * 0.3);
            let paper = train_at_scale(spec, contexts, &Recipe::CacheGen, factor, &mut told)?;
            cachegen.push(ProfileCodec::new("cachegen_paper", "", spec, Arc::new(paper))?);
        }
        let mut kvtc = Vec::new();
        if kvtc_runs {
            progress("principal components of the KVTC-like codec", 0.6);
            let calibration = Calibration::new(spec, contexts)?;
            for codec in ours.iter().filter(|codec| codec.variant() == BUDGET || codec.variant() == UNLIMITED)
            {
                progress("widths of the KVTC-like codec", 0.8);
                let rank = calibration.rank_within(codec.profile_bytes());
                kvtc.push(calibration.codec(rank, codec.variant()));
            }
            if kvtc.is_empty() {
                kvtc.push(calibration.codec(calibration.rank_within(options.budget_bytes), BUDGET));
            }
        }
        let mut lossless = Vec::new();
        if options.wants("lossless") {
            let profile = train(spec, contexts, &Recipe::Exact, DIRECT_NMSE, &mut |what, at| {
                progress(what, 0.9 + 0.1 * at)
            })?;
            lossless.push(ProfileCodec::new("lossless", "", spec, Arc::new(profile))?);
        }
        if let Some(first) = contexts.first().filter(|_| options.wants("lossless_first")) {
            let profile = exact_starter(spec, &first.tokens, first.first_position, &first.kv)?;
            lossless.push(ProfileCodec::new("lossless_first", "", spec, Arc::new(profile))?);
        }
        let cachegen = (!cachegen.is_empty()).then_some(Sweep(cachegen));
        Ok(Self { ours, service, cachegen, kvtc, lossless, options: options.clone() })
    }

    /// Our profiles.
    pub fn ours(&self) -> &[ProfileCodec] {
        &self.ours
    }

    /// Calls `with` with every codec.
    pub fn with_codecs<T>(&self, with: impl FnOnce(&[&dyn KvCodec]) -> T) -> T {
        let plain = [Plain(Storage::Raw), Plain(Storage::Zstd), Plain(Storage::SplitZstd)];
        let deflated: Vec<_> = self.ours.iter().map(SymbolsThroughDeflate).collect();
        let service = self.service.iter().filter(|codec| self.options.wants_variant(codec.variant()));
        let service: Vec<&ProfileCodec> = service.collect();
        let named =
            service.iter().filter_map(|&profile| Some(ByName { profile, first: self.service.first()? }));
        let named: Vec<_> = named.collect();
        let mut codecs: Vec<&dyn KvCodec> = self.ours.iter().map(|codec| codec as &dyn KvCodec).collect();
        codecs.extend(service.iter().map(|codec| *codec as &dyn KvCodec));
        codecs.extend(named.iter().map(|codec| codec as &dyn KvCodec));
        codecs.extend(deflated.iter().map(|codec| codec as &dyn KvCodec));
        codecs.extend(self.kvtc.iter().map(|codec| codec as &dyn KvCodec));
        codecs.extend(self.cachegen.iter().map(|codec| codec as &dyn KvCodec));
        codecs.push(&Lmcache);
        codecs.extend(Uniform::ALL.iter().map(|codec| codec as &dyn KvCodec));
        codecs.extend([&ScaledFloats::Fp8 as &dyn KvCodec, &ScaledFloats::Nvfp4, &TurboquantLike]);
        codecs.extend(self.lossless.iter().map(|codec| codec as &dyn KvCodec));
        codecs.extend(plain.iter().map(|codec| codec as &dyn KvCodec));
        codecs.push(&Zeros);
        codecs.retain(|codec| self.options.wants(codec.name()));
        with(&codecs)
    }
}

/// The variant that a profile is of.
fn kind(profile: &Profile, budget_bytes: u64) -> &'static str {
    match (profile.is_direct(), profile.to_bytes().len() as u64 <= budget_bytes) {
        (true, _) => DIRECT,
        (false, true) => BUDGET,
        (false, false) => UNLIMITED,
    }
}

/// A profile's name in a report: its kind, and a number if there are several of the kind.
fn numbered(kind: &str, before: &[ProfileCodec]) -> String {
    match before.iter().filter(|codec| codec.variant().starts_with(kind)).count() {
        0 => kind.to_owned(),
        count => format!("{kind} {}", count + 1),
    }
}
