//! Thinned caches through Kvasir.
//!
//! A chunk object has one list of tokens for all layers and heads of its model; a thinned cache has a list for every layer
//! (StreamingLLM, sliding windows, under SqueezeAttention of several lengths) or every head (H2O, Scissorhands, FastGen).
//! It is therefore stored in **classes**: heads that keep the same tokens form a separate model of one layer,
//! named by `thinning`. The tokens of a class's object are not the text's:
//!
//! ```text
//! 16 label tokens (one block)                         │ one token a kept row
//! digest of the whole context, its length, the class  │ the position that the row had in the context
//! ```
//! Reuse is of the whole context: another context, even a longer one, has another label. A reader that has
//! only the context finds the object by its label, reads the positions from its head, and loads it like any
//! other. Keys stay rotated by their original positions; the class has no RoPE, so the codec does not change
//! the rotation.
//!
//! The cost: one object per class (a head of a layer, for policies that look at attention), four bytes of
//! position per row, 16 label rows, and no basis across layers, because rows of different tokens cannot
//! predict each other.

use std::{ops::Range, sync::Arc};

use kvasir_client::{
    Error, Kvasir, QualityFloor, Session, pages::HostPages, rest::ObjectRange, tuning::LoadOptions,
};
use kvasir_codec::{KvBuffer, KvSink, KvSource, Profile, container::Head};
use kvasir_types::{
    BLOCK_TOKENS, CHUNK_TOKENS_MAX, KvLayout, LayerKv, Level, ModelSpec, Name, Plane, Reuse, Thinning,
};

use super::{Keep, TokenPolicy};

/// Tokens of a label: one block, the unit of matching.
const LABEL: usize = BLOCK_TOKENS;

/// A thinned cache that cannot be stored or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThinnedError {
    /// The service or the way to it.
    #[error(transparent)]
    Client(#[from] Error),
    /// More rows than an object holds.
    #[error("a head keeps {rows} tokens; a class must fit one object of at most {max}")]
    TooLong {
        /// Rows.
        rows: usize,
        /// Most.
        max: usize,
    },
    /// Another number of profiles than classes.
    #[error("{classes} classes need a profile each, {profiles} were given")]
    Profiles {
        /// Classes.
        classes: usize,
        /// Profiles.
        profiles: usize,
    },
    /// The object does not match its label.
    #[error("the object of {class:?} is not of this context, or its positions are not those of kept tokens")]
    Object {
        /// The class.
        class: ThinClass,
    },
}

/// Heads of one layer that keep the same tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinClass {
    /// The layer.
    pub layer: usize,
    /// Its heads.
    pub heads: Range<usize>,
}

impl ThinClass {
    /// The classes of a policy's caches: one per layer if all its heads keep the same tokens, else one per
    /// head.
    pub fn of(spec: &ModelSpec, policy: &dyn TokenPolicy) -> Vec<Self> {
        let heads = |layer: usize| spec.layers[layer].layout.planes()[0].0;
        let of_layer = |layer: usize| -> Vec<Self> {
            if policy.per_head() {
                (0..heads(layer)).map(|head| Self { layer, heads: head..head + 1 }).collect()
            } else {
                vec![Self { layer, heads: 0..heads(layer) }]
            }
        };
        (0..spec.layers.len()).filter(|&layer| heads(layer) > 0).flat_map(of_layer).collect()
    }

    /// The class as a model: one layer, no RoPE, `thinning` with the class in its parameters. Its reuse is by
    /// prefix: a reader knows only the label, and a service that requires the whole context would not match
    /// that.
    pub fn spec(&self, whole: &ModelSpec, thinning: &Thinning) -> ModelSpec {
        let layout = match whole.layers[self.layer].layout {
            KvLayout::Gqa { head_dim, .. } | KvLayout::SlidingWindow { head_dim, .. } => {
                KvLayout::Gqa { kv_heads: self.heads.len() as u32, head_dim }
            }
            other @ (KvLayout::Mla { .. } | KvLayout::None) => other,
        };
        let (layer, heads) = (self.layer, &self.heads);
        let parameters =
            format!("{}; layer {layer}, heads {}..{}", thinning.parameters, heads.start, heads.end);
        ModelSpec {
            layers: vec![LayerKv { layout, rope: None }],
            ropes: Vec::new(),
            thinning: Some(Thinning { method: thinning.method.clone(), parameters }),
            // Two objects with the same label are always of the same whole context, because readers search by
            // label only.
            reuse: Reuse::Prefix,
            ..whole.clone()
        }
    }

    /// The label that a reader of `context` searches for.
    fn label(&self, context: &[u32]) -> [u32; LABEL] {
        let mut hasher = blake3::Hasher::new_derive_key("kvasir thinned context");
        context.iter().for_each(|token| {
            hasher.update(&token.to_le_bytes());
        });
        let mut label = [0; LABEL];
        let digest = hasher.finalize();
        for (word, bytes) in label.iter_mut().zip(digest.as_bytes().as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        label[8] = context.len() as u32;
        label[9] = self.layer as u32;
        label[10] = self.heads.start as u32;
        label[11] = self.heads.end as u32;
        label
    }

    /// The tokens of the class's object.
    pub fn slots(&self, context: &[u32], kept: &[usize]) -> Vec<u32> {
        self.label(context).into_iter().chain(kept.iter().map(|&position| position as u32)).collect()
    }

    /// The KV of the class's object, out of the whole cache.
    pub fn rows<'a>(&self, kv: &'a dyn KvSource, kept: &'a [usize]) -> ClassRows<'a> {
        ClassRows { kv, class: self.clone(), kept }
    }
}

/// The rows of a class's slots: label slots repeat the first kept row, which costs less than anything made up.
#[derive(Clone)]
pub struct ClassRows<'a> {
    kv: &'a dyn KvSource,
    class: ThinClass,
    kept: &'a [usize],
}

impl std::fmt::Debug for ClassRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClassRows").field("class", &self.class).finish_non_exhaustive()
    }
}

impl KvSource for ClassRows<'_> {
    fn read(&self, _layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        let width = out.len() / tokens.len().max(1);
        for (slot, row) in tokens.zip(out.chunks_exact_mut(width.max(1))) {
            match self.kept.get(slot.saturating_sub(LABEL)) {
                Some(&token) => {
                    self.kv.read(
                        self.class.layer,
                        plane,
                        self.class.heads.start + head,
                        token..token + 1,
                        row,
                    );
                }
                None => row.fill(0.0), // a class that keeps nothing has only its label
            }
        }
    }
}

/// Thinned caches of one model and method in one namespace.
#[derive(Debug)]
pub struct ThinnedStore {
    classes: Vec<(ThinClass, Kvasir)>,
}

impl ThinnedStore {
    /// Registers every class and publishes its profile, one a class in the order of [`ThinClass::of`].
    ///
    /// # Errors
    /// [`ThinnedError::Profiles`], [`ThinnedError::Client`].
    pub async fn connect(
        url: &str,
        (spec, thinning): (&ModelSpec, &Thinning),
        namespace: &Name,
        classes: Vec<ThinClass>,
        profiles: Vec<Arc<Profile>>,
    ) -> Result<Self, ThinnedError> {
        if classes.len() != profiles.len() {
            return Err(ThinnedError::Profiles { classes: classes.len(), profiles: profiles.len() });
        }
        let mut connected = Vec::with_capacity(classes.len());
        for (class, profile) in classes.into_iter().zip(profiles) {
            let spec = Arc::new(class.spec(spec, thinning));
            let builder = Kvasir::builder(url).model(spec).profile(profile).namespace(namespace.as_str());
            // Every level is loaded.
            let builder = builder.quality(QualityFloor::Adaptive).chunk_tokens(CHUNK_TOKENS_MAX);
            connected.push((class, builder.connect().await?));
        }
        Ok(Self { classes: connected })
    }

    /// Stores the tokens of `kv`, the whole cache of `context`, that `keep` selects. Returns the bytes of the
    /// sent objects.
    ///
    /// # Errors
    /// [`ThinnedError::TooLong`], [`ThinnedError::Client`].
    pub async fn store(&self, context: &[u32], kv: &dyn KvSource, keep: &Keep) -> Result<u64, ThinnedError> {
        let mut bytes = 0;
        for (class, kvasir) in &self.classes {
            let kept = keep.head(class.layer, class.heads.start);
            let slots = class.slots(context, kept);
            if slots.len() > CHUNK_TOKENS_MAX {
                return Err(ThinnedError::TooLong { rows: kept.len(), max: CHUNK_TOKENS_MAX - LABEL });
            }
            let session = kvasir.session(&slots).without_lookup().await;
            bytes += session.save_now(&class.rows(kv, kept), slots.len(), |_| ()).await?.bytes();
        }
        Ok(bytes)
    }

    /// Loads the cache of `context` at `level` into `sink`, every row at its position in the context. Returns the
    /// tokens that are now present and the bytes that a reader of that level fetches; `None` if a class is not
    /// stored.
    ///
    /// # Errors
    /// [`ThinnedError::Client`]; [`ThinnedError::Object`] for an object that is of something else.
    pub async fn load(
        &self,
        context: &[u32],
        level: Level,
        sink: &mut (dyn KvSink + Send),
    ) -> Result<Option<(Keep, u64)>, ThinnedError> {
        let layers = self.classes.iter().map(|(class, _)| class.layer + 1).max().unwrap_or(0);
        let mut kept = vec![Vec::new(); layers];
        let mut bytes = 0;
        for (class, kvasir) in &self.classes {
            let Some((positions, rows, read)) = load_class(class, kvasir, context, level).await? else {
                return Ok(None);
            };
            bytes += read;
            for (head, plane) in class.heads.clone().flat_map(|head| Plane::ALL.map(|plane| (head, plane))) {
                let values = rows.rows(0, plane, head - class.heads.start);
                let width = values.len() / rows.tokens().max(1);
                for (position, row) in positions.iter().zip(values.chunks_exact(width.max(1)).skip(LABEL)) {
                    sink.write(class.layer, plane, head, *position, row);
                }
            }
            kept[class.layer].extend(class.heads.clone().map(|_| positions.clone()));
        }
        Ok(Some((Keep { tokens: context.len(), kept }, bytes)))
    }
}

/// Positions, rows (label rows included) and bytes of one class.
async fn load_class(
    class: &ThinClass,
    kvasir: &Kvasir,
    context: &[u32],
    level: Level,
) -> Result<Option<(Vec<usize>, KvBuffer, u64)>, ThinnedError> {
    let wrong = || ThinnedError::Object { class: class.clone() };
    let label = class.label(context);
    let found = look_up(kvasir, &label).await?;
    let Some(object) = found.chunks().first() else { return Ok(None) };
    let range = ObjectRange {
        model_id: kvasir.model_id(),
        seq_hash: object.seq_hash,
        object_digest: object.object_digest,
        start: 0,
        end: object.head_bytes,
    };
    let mut read = kvasir.rest().get_object(&range, &object.via).await?;
    let mut head = Vec::new();
    while let Some(piece) = read.next().await? {
        head.extend_from_slice(&piece);
    }
    let slots = Head::parse(&head).map_err(|_| wrong())?.tokens;
    let positions: Vec<usize> = slots.iter().skip(LABEL).map(|&position| position as usize).collect();
    let ascending = positions.windows(2).all(|pair| pair[0] < pair[1]);
    let within = positions.last().is_none_or(|last| *last < context.len());
    if slots.get(..LABEL) != Some(&label[..]) || !ascending || !within {
        return Err(wrong());
    }
    // From here on it is an ordinary load, with identity, checksums and repairs.
    let session = look_up(kvasir, &slots).await?;
    let bytes = session
        .chunks()
        .iter()
        .filter_map(|c| c.level_bytes.get(usize::from(level.0)).or(c.level_bytes.last()))
        .sum();
    let pages = HostPages::new(kvasir.spec(), slots.len(), slots.len())?;
    let loaded = session.load([pages.table()], LoadOptions::at_level(level))?.finish().await;
    if !loaded.missing().is_empty() {
        return Ok(None);
    }
    Ok(Some((positions, KvBuffer::from_source(kvasir.spec(), slots.len(), &*pages), bytes)))
}

async fn look_up(kvasir: &Kvasir, tokens: &[u32]) -> Result<Session, Error> {
    let mut session = kvasir.session(tokens).without_lookup().await;
    session.lookup().await?;
    Ok(session)
}
