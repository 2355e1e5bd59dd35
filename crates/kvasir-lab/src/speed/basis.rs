//! Chunks of profiles with a basis, and the parts of their coding that can be timed alone.
//!
//! Synthetic bases are orthonormal without training. Their coefficients are those of the shipped profile on the demo's
//! tale, less what its predictor says of them, so tiles have as many zeros at every level as a cache gives them.

use std::{f64::consts::PI, hint::black_box, ops::Range, sync::Arc};

use half::f16;
use kvasir_codec::{
    ChunkEncoder as _, CpuDecoder, CpuEncoder, KvBuffer, Profile,
    authoring::{
        Basis, Elements, Matrix, Member, Predictor, ProfileParts, Rotations, Scope, TextPredictor,
        coarser_by, scopes,
    },
    rans::{Coding, PieceEncoder, PiecePlan},
    rope::Rotation,
};
use kvasir_types::{ModelSpec, Plane};

use super::{
    Work,
    workload::{Chunk, spec},
};
use crate::BenchError;

/// Four spans: two threads have as many each.
const TOKENS: usize = 1_024;
/// Elements of a head, and the rank of a basis of one.
const HEAD: usize = 128;

/// The shipped profile's chunk without the predictor.
pub(super) fn unpredicted(shipped: &Chunk) -> Result<Chunk, BenchError> {
    let profile = with_scopes(&shipped.profile, |scope| scope.predictor = Predictor::Mean)?;
    let (tokens, kv) = (shipped.tokens.clone(), shipped.kv.clone());
    Chunk::new("basis_unpredicted", Arc::clone(&shipped.spec), profile, tokens, kv)
}

/// A chunk whose only scope has all layers and both planes.
pub(super) fn wide(shipped: &Chunk, rank: usize) -> Result<Chunk, BenchError> {
    let spec = spec();
    let scopes = scopes(&spec, spec.layers.len(), true, true);
    synthetic("basis_wide", spec, scopes, rank, shipped)
}

/// A chunk with a scope for each head.
pub(super) fn heads(shipped: &Chunk) -> Result<Chunk, BenchError> {
    let (spec, mut heads) = (spec(), Vec::new());
    for scope in scopes(&spec, 1, false, true) {
        let head =
            |member: &Member| Scope { members: vec![*member], mean: vec![0.0; member.dim], ..scope.clone() };
        heads.extend(scope.members.iter().map(head));
    }
    synthetic("basis_heads", spec, heads, HEAD, shipped)
}

/// A chunk of these scopes with coefficients and codings like those of the shipped profile's scope.
fn synthetic(
    kind: &'static str,
    spec: ModelSpec,
    mut scopes: Vec<Scope>,
    rank: usize,
    shipped: &Chunk,
) -> Result<Chunk, BenchError> {
    let like = &shipped.scopes[0];
    let decoder = CpuDecoder::new(Arc::clone(&shipped.spec), Arc::clone(&shipped.profile))?;
    let spans = residuals(shipped, &decoder, 0)?;
    let row = |c: usize| -> Vec<i32> {
        let of_span = |values: &Vec<i32>| {
            let tokens = values.len() / like.rank();
            values[c * tokens..(c + 1) * tokens].to_vec()
        };
        spans.iter().flat_map(of_span).collect()
    };
    let source: Vec<Vec<i32>> = (0..like.rank()).map(row).collect();
    let of = |c: usize| c * like.rank() / rank;
    let (mut kv, rotation) = (KvBuffer::new(&spec, TOKENS), Rotation::new(&spec.ropes[0], 0, TOKENS));
    for (index, scope) in scopes.iter_mut().enumerate() {
        scope.coding = (0..rank).map(|c| like.coding[of(c)]).collect();
        scope.loss.clone_from(&like.loss);
        scope.members.iter_mut().for_each(|member| member.power = 1.0);
        scope.basis = cosines(scope.elements(), rank, index);
        // Scopes begin at different tokens, so that they are not alike.
        let value = |c: usize, token: usize| {
            let row = &source[of(c)];
            row[(token + 37 * index) % row.len()] as f32
        };
        let coefficients: Vec<f32> = (0..rank * TOKENS).map(|i| value(i / TOKENS, i % TOKENS)).collect();
        let (elements, mut start) = (scope.elements(), 0);
        let mut rows = vec![0.0; elements * TOKENS];
        Matrix::synthesis(scope).synthesise(TOKENS, &coefficients, &mut rows);
        for member in &scope.members {
            let cached = kv.rows_mut(member.layer, member.plane, member.head).chunks_exact_mut(member.dim);
            for (token, (cached, row)) in cached.zip(rows.chunks_exact(elements)).enumerate() {
                cached.copy_from_slice(&row[start..start + member.dim]);
                if member.plane == Plane::K {
                    rotation.rotate(token, cached);
                }
            }
            start += member.dim;
        }
    }
    let parts = ProfileParts {
        model_id: spec.model_id(),
        exact_tokens: 0,
        scopes,
        training: Default::default(),
        ..shipped.profile.parts()
    };
    let profile = Arc::new(Profile::assemble(parts)?);
    Chunk::new(kind, Arc::new(spec), profile, (0..TOKENS as u32).collect(), kv)
}

/// Orthonormal rows: cosines under signs by element.
fn cosines(elements: usize, rank: usize, seed: usize) -> Basis {
    let negative = |element: usize| ((element + 8_191 * seed) as u32).wrapping_mul(0x9e37_79b1) >> 31 == 1;
    let entry = |row: usize, element: usize| {
        let power = if row == 0 { 1.0 } else { 2.0 };
        let angle = PI * (element as f64 + 0.5) * row as f64 / elements as f64;
        let entry = (power / elements as f64).sqrt() * angle.cos();
        f16::from_f64(if negative(element) { -entry } else { entry })
    };
    let synthesis = (0..rank * elements).map(|i| entry(i / elements, i % elements)).collect();
    Basis::Trained { synthesis, analysis: None, packed: None }
}

/// What a decoder adds to its predictions at the finest level, `[coefficient][token]` of every span.
fn residuals(chunk: &Chunk, decoder: &CpuDecoder, index: usize) -> Result<Vec<Vec<i32>>, BenchError> {
    let (scope, level) = (&chunk.scopes[index], chunk.profile.top_level());
    let text = TextPredictor::new(scope);
    let of_span = |(at, span): (usize, Range<usize>)| -> Result<Vec<i32>, BenchError> {
        let values = decoder.scope_coefficients(&chunk.head, &chunk.object, index, level, at)?;
        let predictions = text.predict(scope, &chunk.tokens, None, &span);
        Ok(values.iter().zip(predictions).map(|(value, predicted)| *value as i32 - predicted).collect())
    };
    chunk.spans().enumerate().map(of_span).collect()
}

/// A profile with other scopes.
fn with_scopes(profile: &Profile, change: impl FnMut(&mut Scope)) -> Result<Arc<Profile>, BenchError> {
    let mut parts = profile.parts();
    parts.scopes.iter_mut().for_each(change);
    Ok(Arc::new(Profile::assemble(parts)?))
}

/// The product of a basis and all coefficients of the finest level, zeros among them, by the `gemm` crate: a scope of a span
/// at a time, as a decoder has them.
pub(super) fn product(chunk: &Chunk) -> Result<Work<'_>, BenchError> {
    let decoder = CpuDecoder::new(Arc::clone(&chunk.spec), Arc::clone(&chunk.profile))?;
    let matrices: Vec<Matrix> = chunk.scopes.iter().map(Matrix::synthesis).collect();
    let (mut inputs, level) = (Vec::new(), chunk.profile.top_level());
    for (at, span) in chunk.spans().enumerate() {
        for scope in 0..chunk.scopes.len() {
            let values = decoder.scope_coefficients(&chunk.head, &chunk.object, scope, level, at)?;
            inputs.push((span.len(), values));
        }
    }
    let mut elements = Vec::new();
    let run = move || {
        let scopes = chunk.scopes.iter().zip(&matrices).cycle();
        for ((tokens, values), (scope, matrix)) in inputs.iter().zip(scopes) {
            elements.resize(tokens * scope.elements(), 0.0);
            matrix.synthesise(*tokens, values, &mut elements);
            black_box(&elements);
        }
        Ok(())
    };
    Ok(Work::of(chunk, ("gemm", "product"), None, run))
}

/// A scope's rows on their way into an encoder's product.
struct ScopeRows<'a> {
    scope: &'a Scope,
    elements: Elements,
    stride: usize,
}

impl ScopeRows<'_> {
    /// Read, un-roped, centred and scaled.
    fn normalised(&self, chunk: &Chunk, rotations: &Rotations, span: &Range<usize>) -> Vec<f32> {
        let (mut raw, mut out) = (Vec::new(), vec![0.0; span.len() * self.stride]);
        self.elements.read(&chunk.kv, span, &mut raw);
        self.elements.normalise(&self.scope.mean, rotations, span.len(), &mut raw, &mut out);
        out
    }
}

/// A piece before it is coded.
struct Values {
    codings: Vec<Coding>,
    tokens: usize,
    values: Vec<i32>,
}

/// The parts of an encode on one thread: rows, their product with the analysis matrix, predictions, pieces; and all of it
/// but the measurement of errors. What is left is rounding, moving values, and putting the object together.
pub(super) fn stages(chunk: &Chunk) -> Result<Vec<Work<'_>>, BenchError> {
    let analyses: Vec<Matrix> = chunk.scopes.iter().map(Matrix::analysis).collect();
    let rows = chunk.scopes.iter().zip(&analyses).map(|(scope, analysis)| ScopeRows {
        scope,
        elements: Elements::new(&chunk.spec, scope),
        stride: analysis.stride(scope.elements()),
    });
    let rows: Vec<ScopeRows<'_>> = rows.collect();
    let mut inputs = Vec::new();
    for span in chunk.spans() {
        let rotations = Rotations::new(&chunk.spec.ropes, 0, &span);
        inputs.extend(rows.iter().map(|rows| (span.len(), rows.normalised(chunk, &rotations, &span))));
    }
    let normalise = move || {
        for span in chunk.spans() {
            let rotations = Rotations::new(&chunk.spec.ropes, 0, &span);
            for rows in &rows {
                black_box(rows.normalised(chunk, &rotations, &span));
            }
        }
        Ok(())
    };
    let analyse = move || {
        let scopes = chunk.scopes.iter().zip(&analyses).cycle();
        for ((tokens, input), (scope, analysis)) in inputs.iter().zip(scopes) {
            let mut coefficients = vec![0.0; scope.rank() * tokens];
            analysis.analyse(*tokens, input, &mut coefficients);
            black_box(&coefficients);
        }
        Ok(())
    };
    let texts: Vec<TextPredictor> = chunk.scopes.iter().map(TextPredictor::new).collect();
    let predict = move || {
        for span in chunk.spans() {
            for (scope, text) in chunk.scopes.iter().zip(&texts) {
                black_box(text.predict(scope, &chunk.tokens, None, &span));
            }
        }
        Ok(())
    };
    let (encoder, pieces) = (PieceEncoder::best(), pieces(chunk)?);
    let code = move || {
        for Values { codings, tokens, values } in &pieces {
            let (plan, mut out) = (PiecePlan { coefficients: codings, tokens: *tokens }, Vec::new());
            encoder.encode_piece(chunk.profile.bank(), &plan, values, &mut out)?;
            black_box(&out);
        }
        Ok(())
    };
    let unknown = |scope: &mut Scope| scope.members.iter_mut().for_each(|member| member.power = 0.0);
    let whole = CpuEncoder::new(Arc::clone(&chunk.spec), with_scopes(&chunk.profile, unknown)?)?;
    let unmeasured = move || {
        black_box(whole.encode(&chunk.input())?);
        Ok(())
    };
    let path = encoder.name();
    let mut works = vec![
        Work::of(chunk, (path, "encode_rows"), None, normalise),
        Work::of(chunk, (path, "encode_analysis"), None, analyse),
        Work::of(chunk, (path, "encode_pieces"), None, code),
        Work::of(chunk, (path, "encode_unmeasured"), None, unmeasured),
    ];
    if chunk.scopes.iter().any(|scope| matches!(scope.predictor, Predictor::Token(_))) {
        works.push(Work::of(chunk, (path, "encode_predictions"), None, predict));
    }
    Ok(works)
}

/// Values of all pieces at their own levels.
fn pieces(chunk: &Chunk) -> Result<Vec<Values>, BenchError> {
    let decoder = CpuDecoder::new(Arc::clone(&chunk.spec), Arc::clone(&chunk.profile))?;
    let mut pieces = Vec::new();
    for scope in 0..decoder.scope_count() {
        let Some(view) = decoder.scope_view(scope) else { continue };
        for (fine, span) in residuals(chunk, &decoder, scope)?.iter().zip(chunk.spans()) {
            let tokens = span.len();
            for (up, (coefficients, codings)) in view.levels.iter().rev().enumerate() {
                let fine = coefficients.iter().flat_map(|c| &fine[c * tokens..(c + 1) * tokens]);
                let values = fine.map(|q| coarser_by(*q, up as u32)).collect();
                pieces.push(Values { codings: codings.to_vec(), tokens, values });
            }
        }
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_synthetic_basis_are_orthonormal() {
        for (elements, rank) in [(128, 128), (300, 90)] {
            let Basis::Trained { synthesis, .. } = cosines(elements, rank, 3) else {
                panic!("a matrix");
            };
            let rows: Vec<&[f16]> = synthesis.chunks_exact(elements).collect();
            assert_eq!(rows.len(), rank);
            for (i, row) in rows.iter().enumerate() {
                for (j, other) in rows.iter().enumerate() {
                    let dot: f64 = row.iter().zip(*other).map(|(x, y)| x.to_f64() * y.to_f64()).sum();
                    let expected = if i == j { 1.0 } else { 0.0 };
                    assert!((dot - expected).abs() < 1e-3, "{elements}, {i} and {j}: {dot}");
                }
            }
        }
    }
}
