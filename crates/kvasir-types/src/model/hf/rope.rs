//! The rotary embedding of a kind of layer.

use super::{
    super::{
        Pairing, Rope, RopeError, RopeFormula, RopeScaling,
        precise::{ln, pow},
        rope::yarn_magnitude,
    },
    HfError, HfOptions,
    architecture::{Architecture, Attention, Partial},
    fields::Fields,
    layers::Reach,
};

/// Fields that a rope of any kind may have. The last two do not affect keys: a limit, and a factor on
/// queries.
const COMMON: [&str; 6] = [
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "llama_4_scaling_beta",
];

/// The rope of layers with this attention span, with heads of `head_dim` elements.
pub(super) fn read(
    text: &Fields<'_>,
    architecture: &Architecture,
    reach: Reach,
    head_dim: u32,
    options: &HfOptions,
) -> Result<Rope, HfError> {
    let local = architecture.local_plain && reach != Reach::Full;
    let parameters = parameters(text, architecture, reach)?;
    let own = parameters.as_ref();
    let own_number = |name| own.map_or(Ok(None), |p: &Fields<'_>| p.number(name));
    let factor = match own_number("partial_rotary_factor")? {
        Some(factor) => Some(factor),
        None => text.number("partial_rotary_factor")?,
    };
    let rotated = match architecture.partial {
        Partial::Whole => factor.unwrap_or(1.0),
        Partial::Factor(default) => factor.unwrap_or(default),
        Partial::Percentage(default) => factor.or(text.number("rotary_pct")?).unwrap_or(default),
        Partial::Dims => match text.uint("rotary_dim")? {
            Some(dims) if factor.is_none() => f64::from(dims) / f64::from(head_dim),
            _ => factor.unwrap_or(1.0),
        },
    };
    let at_fault = || own.filter(|p| p.get("partial_rotary_factor").is_some()).unwrap_or(text);
    if architecture.partial == Partial::Whole && rotated != 1.0 {
        return Err(at_fault().refused(
            "partial_rotary_factor",
            "this architecture is not known to rotate only part of a head",
        ));
    }
    let rotary_dims = (f64::from(head_dim) * rotated) as u32;
    if !(rotated > 0.0 && rotated <= 1.0 && rotary_dims >= 2 && rotary_dims.is_multiple_of(2)) {
        let advice =
            format!("must leave an even number of a head's {head_dim} elements, found {rotary_dims}");
        return Err(at_fault().refused("partial_rotary_factor", advice));
    }
    let [theta_full, theta_local] = architecture.theta;
    let theta = match own_number("rope_theta")? {
        Some(theta) => theta,
        // `rope_theta` is that of full attention.
        None if local => text.number("rope_local_base_freq")?.unwrap_or(theta_local),
        None => text.number("rope_theta")?.or(text.number("rotary_emb_base")?).unwrap_or(theta_full),
    };
    let plain = RopeFormula { rotary_dims, theta, scaling: None };
    let (formula, attention_factor) = match own {
        Some(own) => scaled(text, architecture, own, plain, options)?,
        None => (plain, None),
    };
    let rope = Rope::of(pairing(text, architecture, options)?, formula);
    let rope = rope.map_err(|error| {
        let has = |fields: &&Fields<'_>, name| fields.get(name).is_some();
        let (fields, name) = match error {
            RopeError::Dims(_) => (text, "head_dim"),
            RopeError::Theta => (own.filter(|own| has(own, "rope_theta")).unwrap_or(text), "rope_theta"),
            // Only a factor can cause an invalid frequency; the lengths of the lists were checked.
            RopeError::Factors { .. } | RopeError::Frequency { .. } => (own.unwrap_or(text), "factor"),
        };
        fields.refused(name, error.to_string())
    })?;
    let attention_factor = attention_factor.map_or(rope.attention_factor, |factor| factor as f32);
    Ok(Rope { attention_factor, ..rope })
}

/// The object that describes the rope of a kind of layer.
fn parameters<'a>(
    text: &Fields<'a>,
    architecture: &Architecture,
    reach: Reach,
) -> Result<Option<Fields<'a>>, HfError> {
    let (scaling, parameters) = (text.object("rope_scaling")?, text.object("rope_parameters")?);
    let Some(parameters) = parameters else {
        if scaling.is_none() && architecture.rope_required {
            return Err(text.refused(
                "rope_parameters",
                "required, or rope_scaling: this architecture's default is not supported",
            ));
        }
        return Ok(scaling.filter(|_| reach == Reach::Full || !architecture.local_plain));
    };
    // `transformers` takes `rope_scaling`, or merges the two; other engines may take the other.
    if scaling.is_some() && text.get("rope_scaling") != text.get("rope_parameters") {
        return Err(text.refused("rope_scaling", "`rope_parameters` differs from it; remove one of the two"));
    }
    let kinds = [Reach::Full, Reach::Sliding, Reach::Chunked];
    if !architecture.local_plain && !kinds.iter().any(|kind| parameters.get(kind.name()).is_some()) {
        return Ok(Some(parameters));
    }
    match parameters.object(reach.name())? {
        Some(own) => Ok(Some(own)),
        None => Err(parameters.refused(
            reach.name(),
            "required: layers of this type exist, and each type has an entry of its own",
        )),
    }
}

fn pairing(text: &Fields<'_>, architecture: &Architecture, options: &HfOptions) -> Result<Pairing, HfError> {
    let interleave =
        if architecture.attention == Attention::Latent { text.flag("rope_interleave")? } else { None };
    let of_model = if interleave == Some(false) { Pairing::Half } else { architecture.pairing };
    Ok(options.pairing.unwrap_or(of_model))
}

/// The formula with its scaling, and the configuration's own attention factor, if any.
fn scaled(
    text: &Fields<'_>,
    architecture: &Architecture,
    own: &Fields<'_>,
    plain: RopeFormula,
    options: &HfOptions,
) -> Result<(RopeFormula, Option<f64>), HfError> {
    let name = if own.get("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = own.text(name)?.unwrap_or("default");
    let known: &[&str] = match kind {
        "default" => &[],
        "linear" | "dynamic" => &["factor"],
        "llama3" => &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
        "yarn" => &[
            "factor",
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
        "longrope" | "su" => {
            &["factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"]
        }
        _ => {
            return Err(own.refused(
                name,
                "not supported; supported are default, linear, dynamic, llama3, yarn and longrope",
            ));
        }
    };
    if let Some(unknown) = own.names().find(|name| !COMMON.contains(name) && !known.contains(name)) {
        return Err(own.refused(unknown, format!("not supported in a rope of type {kind}")));
    }
    let needed = |name: &str| {
        own.number(name)?.ok_or_else(|| own.refused(name, format!("required in a rope of type {kind}")))
    };
    let original = || match text
        .uint("original_max_position_embeddings")?
        .or(architecture.default_of(text, "original_max_position_embeddings"))
        .or(own.uint("original_max_position_embeddings")?)
    {
        Some(original) => Ok(original),
        None => text.required("max_position_embeddings"),
    };
    // Without a factor, it is the ratio of the longest context to the original one.
    let factor = || match own.number("factor")? {
        Some(factor) => Ok::<_, HfError>(factor),
        None => Ok(f64::from(text.required("max_position_embeddings")?) / f64::from(original()?.max(1))),
    };
    let with = |scaling| RopeFormula { scaling: Some(scaling), ..plain.clone() };
    match kind {
        "linear" => Ok((with(RopeScaling::Linear { factor: needed("factor")? }), None)),
        "dynamic" => Ok((dynamic(text, own, &plain, needed("factor")?, options)?, None)),
        "llama3" => {
            let scaling = RopeScaling::Llama3 {
                factor: needed("factor")?,
                low_freq_factor: needed("low_freq_factor")?,
                high_freq_factor: needed("high_freq_factor")?,
                original_max_position_embeddings: original()?.into(),
            };
            Ok((with(scaling), None))
        }
        "yarn" => {
            let factor = factor()?;
            let or =
                |name, default| Ok::<_, HfError>(own.number(name)?.filter(|v| *v != 0.0).unwrap_or(default));
            let (mscale, mscale_all_dim) = (or("mscale", 0.0)?, or("mscale_all_dim", 0.0)?);
            let ratio = || yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim);
            let from_scales = (mscale != 0.0 && mscale_all_dim != 0.0).then(ratio);
            let scaling = RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: original()?.into(),
                beta_fast: or("beta_fast", 32.0)?,
                beta_slow: or("beta_slow", 1.0)?,
                truncate: own.flag("truncate")?.unwrap_or(true),
            };
            Ok((with(scaling), own.number("attention_factor")?.or(from_scales)))
        }
        "longrope" | "su" => {
            let original = original()?;
            let finite =
                |v: &serde_json::Value| v.as_f64().map(|v| v as f32).filter(|factor| factor.is_finite());
            let list = |name| match own.list(name, "a list of numbers within f32", finite)? {
                Some(list) if list.len() != plain.rotary_dims as usize / 2 => {
                    let pairs = plain.rotary_dims / 2;
                    Err(own.refused(name, format!("must have {pairs} entries, one for each rotary pair")))
                }
                Some(list) => Ok(list),
                None => Err(own.refused(name, "required in a rope of type longrope")),
            };
            let (short, long) = (list("short_factor")?, list("long_factor")?);
            let factors = match options.context {
                _ if short == long => short,
                Some(context) if context <= original.into() => short,
                Some(_) => long,
                None => return Err(own.refused(name, lengths_matter(original))),
            };
            let factor = factor()?;
            let default =
                if factor > 1.0 { (1.0 + ln(factor) / ln(f64::from(original).max(2.0))).sqrt() } else { 1.0 };
            let attention_factor = own.number("attention_factor")?.unwrap_or(default);
            Ok((with(RopeScaling::Longrope { factors }), Some(attention_factor)))
        }
        _ => Ok((plain, None)),
    }
}

fn lengths_matter(original: u32) -> String {
    format!(
        "frequencies differ between contexts up to {original} tokens and longer ones, whose caches cannot be shared; \
         give the longest context served (context)"
    )
}

/// Dynamic NTK: plain up to the original length; beyond it, another base for each length.
fn dynamic(
    text: &Fields<'_>,
    own: &Fields<'_>,
    plain: &RopeFormula,
    factor: f64,
    options: &HfOptions,
) -> Result<RopeFormula, HfError> {
    let original = text.required("max_position_embeddings")?;
    let Some(context) = options.context else {
        return Err(own.refused("factor", lengths_matter(original)));
    };
    if context <= original.into() {
        return Ok(plain.clone());
    }
    let stretch = factor * context as f64 / f64::from(original) - (factor - 1.0);
    let dims = f64::from(plain.rotary_dims);
    if !((1.0..1e9).contains(&stretch) && dims > 2.0) {
        return Err(own.refused("factor", "must be at least 1, and fit the context"));
    }
    Ok(RopeFormula { theta: plain.theta * pow(stretch, dims / (dims - 2.0)), ..plain.clone() })
}
