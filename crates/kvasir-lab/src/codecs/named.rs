//! Our objects as clients store and load them: by the name of a quality.

use kvasir_container::Head;
use kvasir_types::{Level, Quality};

use super::{Chunk, Coded, KvCodec, ProfileCodec, object::error_of};
use crate::BenchError;

/// The qualities, in the order of a codec's settings. `exact` is another kind of profile's.
const NAMES: [Quality; 3] = [Quality::Small, Quality::Balanced, Quality::Transparent];

/// The objects of a profile, each chunk at the coarsest level that has a quality. A chunk without a `transparent` level is stored
/// with the model's first profile instead.
#[derive(Debug)]
pub struct ByName<'a> {
    /// The profile.
    pub profile: &'a ProfileCodec,
    /// The model's first one.
    pub first: &'a ProfileCodec,
}

impl KvCodec for ByName<'_> {
    fn name(&self) -> &'static str {
        "kvasir_names"
    }

    fn variant(&self) -> &str {
        self.profile.variant()
    }

    fn levels(&self) -> usize {
        NAMES.len()
    }

    fn profile_bytes(&self) -> u64 {
        self.profile.profile_bytes()
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let (mut codec, mut object) = (self.profile, self.profile.encode(chunk)?);
        let mut head = Head::parse(&object)?;
        if error_of(&head, codec.profile().top_level()) > Quality::Transparent.error_max() {
            (codec, object) = (self.first, self.first.encode(chunk)?);
            head = Head::parse(&object)?;
        }
        let top = codec.profile().top_level();
        let of = |quality: &Quality| {
            let has = |level: &Level| error_of(&head, *level) <= quality.error_max();
            codec.decode(chunk.spec, &object, (0..top.0).map(Level).find(has).unwrap_or(top))
        };
        NAMES.iter().map(of).collect()
    }
}
