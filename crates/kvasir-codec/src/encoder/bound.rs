//! Keeps a chunk `transparent`, and no better than that: spans of a scope are stored exactly, or with the finest level, only where
//! the chunk needs it.

use kvasir_types::{LevelError, Quality};

use super::{
    CpuEncoder,
    measure::ScopeErrors,
    span::{SpanJob, SpanPieces},
};
use crate::{ChunkInput, EncodeError, span_ropes::SpanRopes};

impl CpuEncoder {
    /// Stores spans of scopes exactly until the finest lossy level is `transparent`. This keeps a first profile's promise if its
    /// steps do not: rows that repeat have errors that do not average out.
    pub(super) fn keep_transparent(
        &self,
        input: &ChunkInput<'_>,
        ropes: &[SpanRopes<'_>],
        coded: &mut [SpanPieces],
    ) -> Result<(), EncodeError> {
        for (index, coded) in coded.chunks_exact_mut(ropes.len()).enumerate() {
            let errors = coded.iter().map(|pieces| pieces.errors.as_ref().map(ScopeErrors::finest));
            let Some(errors) = errors.collect::<Option<Vec<_>>>() else { continue };
            self.until_transparent(index, errors, |span| {
                let exact = SpanJob::new(self, index, input, &ropes[span]).exactly()?;
                Ok(exact.map(|exact| {
                    coded[span] = exact;
                    ScopeErrors::exact(&self.scopes[index].prepared).finest()
                }))
            })?;
        }
        Ok(())
    }

    /// Leaves out the pieces of the finest level, but for spans of scopes without which the chunk would not be `transparent`.
    pub(super) fn leave_out_finest(&self, coded: &mut [SpanPieces], spans: usize) -> Result<(), EncodeError> {
        for (index, coded) in coded.chunks_exact_mut(spans).enumerate() {
            let without = |pieces: &SpanPieces| {
                let errors = pieces.errors.as_ref()?;
                Some(errors.finest_left_out().unwrap_or_else(|| errors.finest()))
            };
            let Some(errors) = coded.iter().map(without).collect::<Option<Vec<_>>>() else { continue };
            let mut kept = vec![false; spans];
            self.until_transparent(index, errors, |span| {
                kept[span] = true;
                Ok(coded[span].errors.as_ref().map(ScopeErrors::finest))
            })?;
            for (pieces, _) in coded.iter_mut().zip(kept).filter(|(_, kept)| !kept) {
                pieces.leave_out_finest();
            }
        }
        Ok(())
    }

    /// Calls `improve` with spans of a scope, those that add most to its `errors` first, until the scope is `transparent`.
    /// `improve` returns the span's errors from then on; `None` if it stays as it is.
    fn until_transparent(
        &self,
        scope: usize,
        mut errors: Vec<ScopeErrors>,
        mut improve: impl FnMut(usize) -> Result<Option<ScopeErrors>, EncodeError>,
    ) -> Result<(), EncodeError> {
        let (spec, scope) = (&self.spec, &self.profile.scopes[scope]);
        let share = |errors: &ScopeErrors| errors.worst(spec, scope) * errors.tokens() as f64;
        let mut order: Vec<usize> = (0..errors.len()).collect();
        order.sort_by(|a, b| share(&errors[*b]).total_cmp(&share(&errors[*a])));
        for span in order {
            let mut sum = errors[0].clone();
            errors[1..].iter().for_each(|errors| sum.add(errors));
            if LevelError::at_least(sum.worst(spec, scope)) <= Quality::Transparent.error_max() {
                break;
            }
            if let Some(improved) = improve(span)? {
                errors[span] = improved;
            }
        }
        Ok(())
    }
}
