//! The steps of a run, the most important first: time may not suffice for all.

use std::{error::Error, path::PathBuf, sync::Arc};

use kvasir_cuda::CudaDevice;
use kvasir_train::Recipe;

use crate::{
    differential, loads, peers, product,
    rates::{FLASH, LAYOUTS, Source, Subject},
    report::Report,
    shapes::Shape,
};

/// What all steps need.
pub(crate) struct Bench {
    pub(crate) device: Arc<CudaDevice>,
    pub(crate) small: bool,
    pub(crate) golden: PathBuf,
    /// Made by the first step that is about it.
    pub(crate) large: Option<Arc<Subject>>,
}

/// Whole chunks of basis profiles, at the sizes of the targets: name, layers of a basis, rank.
const BASES: [(&str, usize, usize); 2] = [
    ("Llama-3-8B, bases of 8 layers, r <= 2,048", 8, 2_048),
    ("Llama-3-8B, one basis, r <= 4,096", 32, 4_096),
];
const TINY_BASES: [(&str, usize, usize); 1] = [("tiny basis", 2, 32)];

/// Returns whether all that it compared was equal.
type Step = fn(&mut Bench, &mut Report) -> Result<bool, Box<dyn Error>>;

/// The steps by name.
pub(crate) const STEPS: [(&str, Step); 12] = [
    ("checks", |bench, _| differential::run(&bench.device, &bench.golden)),
    ("decode", |bench, report| decode(bench, 0, report)),
    ("refinement", |bench, report| decode(bench, 1, report)),
    ("product", |bench, report| product::run(&bench.device, bench.small, report).map(|()| true)),
    ("exact", exact),
    ("loads", |bench, report| {
        let large = bench.large()?;
        loads::run(&large, report)
    }),
    ("encode", encode),
    ("peers", |bench, report| peers::run(&bench.device, bench.small, report).map(|()| true)),
    ("layouts", layouts),
    ("short", |bench, report| {
        let (shape, tokens) = (bench.large()?.shape.clone(), if bench.small { 33 } else { 256 });
        whole(bench, shape, tokens, report)
    }),
    ("deep", |bench, report| {
        let shape = Shape::trained("Llama-3-70B", 80, &Recipe::Direct, bench.small)?;
        whole(bench, shape, bench.tokens(), report)
    }),
    ("bases", |bench, report| {
        let mut same = true;
        for basis in if bench.small { &TINY_BASES[..] } else { &BASES[..] } {
            let shape = Shape::basis(*basis, bench.tokens(), bench.small)?;
            same &= whole(bench, shape, bench.tokens(), report)?;
        }
        Ok(same)
    }),
];

impl Bench {
    fn tokens(&self) -> usize {
        if self.small { 70 } else { 1_536 }
    }

    /// Chunks in one launch: for latency, for throughput, and what a load may have waiting.
    fn chunks(&self) -> &'static [usize] {
        if self.small { &[1, 2] } else { &[1, 16, 4] }
    }

    /// The chunk that most rows are of.
    fn large(&mut self) -> Result<Arc<Subject>, Box<dyn Error>> {
        if let Some(large) = &self.large {
            return Ok(Arc::clone(large));
        }
        let shape = Shape::trained("Llama-3-8B", 32, &Recipe::Direct, self.small)?;
        let object = Source::new(&self.device, &shape, self.tokens())?.encode()?;
        let large = Arc::new(Subject::new(&self.device, shape, object)?);
        self.large = Some(Arc::clone(&large));
        Ok(large)
    }
}

/// The base, or the one refinement, of one chunk and of several.
fn decode(bench: &mut Bench, refinements: usize, report: &mut Report) -> Result<bool, Box<dyn Error>> {
    let large = bench.large()?;
    let mut same = true;
    for chunks in bench.chunks() {
        same &= large.decode(large.levels()[refinements], *chunks, FLASH, report)?;
    }
    Ok(same)
}

fn exact(bench: &mut Bench, report: &mut Report) -> Result<bool, Box<dyn Error>> {
    let shape = Shape::trained("Llama-3-8B", 32, &Recipe::DirectExact, bench.small)?;
    let object = shape.encode_on_cpu(bench.tokens())?;
    let subject = Subject::new(&bench.device, shape, object)?;
    let level = subject.shape.profile.top_level();
    let mut same = subject.decode(level, 1, FLASH, report)?;
    subject.decode_on_cpu(level, report)?;
    same &= subject.decode(level, if bench.small { 2 } else { 4 }, FLASH, report)?;
    Ok(same)
}

fn encode(bench: &mut Bench, report: &mut Report) -> Result<bool, Box<dyn Error>> {
    let large = bench.large()?;
    Source::new(&bench.device, &large.shape, bench.tokens())?.time(&large.shape, report)?;
    Ok(true)
}

fn layouts(bench: &mut Bench, report: &mut Report) -> Result<bool, Box<dyn Error>> {
    let (large, chunks) = (bench.large()?, if bench.small { 2 } else { 4 });
    for (layout, level) in LAYOUTS.into_iter().flat_map(|layout| large.levels().map(|level| (layout, level)))
    {
        large.decode(level, chunks, layout, report)?;
    }
    Ok(true)
}

/// All rows of a shape.
fn whole(bench: &Bench, shape: Shape, tokens: usize, report: &mut Report) -> Result<bool, Box<dyn Error>> {
    let source = Source::new(&bench.device, &shape, tokens)?;
    source.time(&shape, report)?;
    let subject = Subject::new(&bench.device, shape, source.encode()?)?;
    drop(source);
    let mut same = true;
    for level in subject.levels() {
        for chunks in bench.chunks() {
            same &= subject.decode(level, *chunks, FLASH, report)?;
        }
    }
    Ok(same)
}
