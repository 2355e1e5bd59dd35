//! The cost and loss of a starter's levels on its sample.

use std::sync::Arc;

use kvasir_container::Head;
use kvasir_types::{ChainLink, Level, Loss, ModelSpec, Quality};

use super::{StarterError, error_ratio};
use crate::{
    ChunkDecoder, ChunkEncoder, ChunkInput, CpuDecoder, CpuEncoder, DecodeError, KvBuffer, KvSource, Profile,
    authoring::{Member, ProfileParts, plane_errors},
};

/// Encodes and decodes the sample and records bits per element and error by level.
pub(super) fn note_levels(
    spec: &ModelSpec,
    mut parts: ProfileParts,
    tokens: &[u32],
    first_position: u64,
    kv: &dyn KvSource,
) -> Result<Profile, StarterError> {
    for scope in &mut parts.scopes {
        // The error summed over planes, by which encoders order sections: a member has its share of its
        // plane's.
        let of_member = |member: &Member| {
            let layout = spec.layers[member.layer].layout;
            let (heads, _) = layout.planes()[member.plane as usize];
            Quality::transparent_error(layout, member.plane) / heads.max(1) as f64
        };
        let finest: f64 = scope.members.iter().map(of_member).sum();
        for (level, loss) in scope.loss.iter_mut().enumerate() {
            *loss = finest as f32 * error_ratio(level);
        }
    }
    let profile = Arc::new(Profile::assemble(parts.clone())?);
    let spec = Arc::new(spec.clone());
    let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
    let decoder = CpuDecoder::new(Arc::clone(&spec), profile)?;
    let count = tokens.len();
    let input = ChunkInput {
        tokens,
        preceding_token: None,
        first_position,
        link: ChainLink::first([0; 32].into()),
        beneath: Loss::NONE,
        kv,
    };
    let object = encoder.encode(&input)?;
    let head = Head::parse(&object).map_err(|error| StarterError::Decode(DecodeError::from(error)))?;
    let truth = KvBuffer::from_source(&spec, count, kv);
    let elements = (count * spec.elements_per_token()).max(1) as f64;
    for (level, note) in parts.levels.iter_mut().enumerate() {
        let level = Level(level as u8);
        let mut decoded = KvBuffer::new(&spec, count);
        decoder.decode(&head, &object, level, 0..count, &mut decoded).map_err(StarterError::Decode)?;
        note.bits_per_element = (8.0 * head.level_bytes(level).unwrap_or(0) as f64 / elements) as f32;
        note.nmse = mean_error(&spec, &truth, &decoded) as f32;
    }
    Ok(Profile::assemble(parts)?)
}

/// The errors of all planes, averaged so that all elements have the same weight.
fn mean_error(spec: &ModelSpec, truth: &KvBuffer, decoded: &KvBuffer) -> f64 {
    let sizes = spec.layers.iter().flat_map(|kv| kv.layout.planes()).map(|(heads, dim)| heads * dim);
    let errors = plane_errors(spec, truth, decoded).into_iter().zip(sizes);
    let (sum, elements) = errors.fold((0f64, 0usize), |(sum, elements), (error, size)| match error {
        Some(error) => (sum + error * size as f64, elements + size),
        None => (sum, elements),
    });
    sum / elements.max(1) as f64
}
