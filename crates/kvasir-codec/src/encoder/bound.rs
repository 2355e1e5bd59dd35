//! Keeps a first profile's promise if its steps do not: rows that repeat have errors that do not average out.

use kvasir_types::{LevelError, Quality};

use super::{
    CpuEncoder,
    measure::ScopeErrors,
    span::{SpanJob, SpanPieces},
};
use crate::{ChunkInput, EncodeError, span_ropes::SpanRopes};

impl CpuEncoder {
    /// Stores spans of scopes exactly, those that add most to the error first, until the finest lossy level is `transparent`.
    pub(super) fn keep_transparent(
        &self,
        input: &ChunkInput<'_>,
        ropes: &[SpanRopes<'_>],
        coded: &mut [SpanPieces],
    ) -> Result<(), EncodeError> {
        let (spec, bound) = (&self.spec, Quality::Transparent.error_max());
        for (index, coded) in coded.chunks_exact_mut(ropes.len()).enumerate() {
            let scope = &self.profile.scopes[index];
            let errors = coded.iter().map(|pieces| pieces.errors.as_ref().map(ScopeErrors::finest));
            let Some(mut errors) = errors.collect::<Option<Vec<_>>>() else { continue };
            let share = |errors: &ScopeErrors| errors.worst(spec, scope) * errors.tokens() as f64;
            let mut order: Vec<usize> = (0..errors.len()).collect();
            order.sort_by(|a, b| share(&errors[*b]).total_cmp(&share(&errors[*a])));
            for span in order {
                let mut sum = errors[0].clone();
                errors[1..].iter().for_each(|errors| sum.add(errors));
                if LevelError::at_least(sum.worst(spec, scope)) <= bound {
                    break;
                }
                let Some(exact) = SpanJob::new(self, index, input, &ropes[span]).exactly()? else { continue };
                errors[span] = ScopeErrors::exact(&self.scopes[index].prepared).finest();
                coded[span] = exact;
            }
        }
        Ok(())
    }
}
