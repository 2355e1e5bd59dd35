//! Checks an object's sections against those that its profile writes, before anything is decoded.

use std::{collections::BTreeMap, ops::Range};

use kvasir_container::{Head, Measured};
use kvasir_types::{Level, SPAN_TOKENS};

use super::{CpuDecoder, task::DecodeTask};
use crate::{
    DecodeError,
    prepared_scope::{BAND_ANCHORS, BAND_EXACT, BAND_LOSSLESS, BAND_MAIN},
};

/// Section index by (scope, band, level).
pub(super) type SectionMap = BTreeMap<(u16, u8, Level), usize>;

/// An object, or its available prefix.
#[derive(Clone, Copy)]
pub(super) struct PartialObject<'a, 's> {
    pub(super) head: &'a Head,
    pub(super) bytes: &'a [u8],
    pub(super) sections: &'s SectionMap,
}

impl<'a> PartialObject<'a, '_> {
    /// Index of a section and byte range of one of its pieces, if it is not absent.
    pub(super) fn entry(&self, task: DecodeTask, band: u8, level: usize) -> Option<(usize, Range<u64>)> {
        let section = *self.sections.get(&(task.scope as u16, band, Level(level as u8)))?;
        Some((section, self.head.piece(section, task.span)?.range))
    }

    /// A piece's bytes after its checksum was verified; `None` if it is absent.
    pub(super) fn piece(
        &self,
        task: DecodeTask,
        band: u8,
        level: usize,
    ) -> Result<Option<(usize, &'a [u8])>, DecodeError> {
        let Some((section, range)) = self.entry(task, band, level) else { return Ok(None) };
        let found = self.bytes.len() as u64;
        let short = DecodeError::Short { level: Level(level as u8), needed: range.end, found };
        let bytes = self.bytes.get(range.start as usize..range.end as usize).ok_or(short)?;
        self.head.check_piece(section, task.span, bytes)?;
        Ok(Some((section, bytes)))
    }
}

impl CpuDecoder {
    /// The sections of an object and the tasks of a request, after both were checked.
    pub(super) fn plan_tasks(
        &self,
        head: &Head,
        scopes: &[(usize, Level)],
        tokens: &Range<usize>,
    ) -> Result<(SectionMap, Vec<DecodeTask>), DecodeError> {
        self.check_head(head)?;
        let chunk_tokens = head.header.token_count as usize;
        if tokens.start > tokens.end || tokens.end > chunk_tokens {
            let (start, end) = (tokens.start, tokens.end);
            return Err(DecodeError::NoSuchTokens { start, end, tokens: chunk_tokens });
        }
        let top = self.profile.top_level();
        for &(scope, level) in scopes {
            if level > top {
                return Err(DecodeError::NoSuchLevel { level, top });
            }
            if scope >= self.scopes.len() {
                return Err(DecodeError::Sections { what: "a requested scope is not in the profile" });
            }
        }
        let needed = if tokens.is_empty() {
            0..0
        } else {
            tokens.start / SPAN_TOKENS..tokens.end.div_ceil(SPAN_TOKENS)
        };
        let of_span =
            |span| scopes.iter().map(move |&(scope, level)| DecodeTask { scope, span, level: level.index() });
        Ok((self.section_map(head)?, needed.flat_map(of_span).collect()))
    }

    fn check_head(&self, head: &Head) -> Result<(), DecodeError> {
        let header = &head.header;
        if header.model_id != self.profile.model_id() {
            let decoder = self.profile.model_id();
            return Err(DecodeError::ForeignModel { object: header.model_id, decoder });
        }
        if header.profile_hash != self.profile.hash() {
            let decoder = self.profile.hash();
            return Err(DecodeError::ForeignProfile { object: header.profile_hash, decoder });
        }
        if usize::from(header.level_count) != self.profile.level_count() {
            return Err(DecodeError::Sections { what: "its number of levels differs from the profile's" });
        }
        let (levels, planes) = (self.profile.lossy_levels(), 2 * self.spec.layers.len());
        let differs = |measured: &Measured| {
            measured.levels.len() != levels || measured.levels.iter().any(|errors| errors.len() != planes)
        };
        if head.measured().is_some_and(differs) {
            return Err(DecodeError::Sections {
                what: "its measured errors are not of the profile's levels",
            });
        }
        Ok(())
    }

    /// Finds every section that the profile writes; rejects others.
    pub(super) fn section_map(&self, head: &Head) -> Result<SectionMap, DecodeError> {
        let map: SectionMap = (head.sections().iter().enumerate())
            .map(|(index, id)| ((id.scope, id.band, id.level), index))
            .collect();
        let mut expected = 0;
        for (prepared, _) in &self.scopes {
            let scope = prepared.index as u16;
            let mains = (0..prepared.levels.len()).map(|level| (scope, BAND_MAIN, Level(level as u8)));
            let anchors =
                (!prepared.anchors.codings.is_empty()).then_some((scope, BAND_ANCHORS, Level::BASE));
            let exact_level = self.profile.scopes[prepared.index].lossless.as_ref();
            let exact_level = exact_level.map(|_| (scope, BAND_LOSSLESS, self.profile.top_level()));
            for id in mains.chain(anchors).chain(exact_level) {
                if !map.contains_key(&id) {
                    return Err(DecodeError::Sections { what: "a section is missing" });
                }
                expected += 1;
            }
            expected += usize::from(map.contains_key(&(scope, BAND_EXACT, Level::BASE)));
        }
        if expected != head.sections().len() {
            return Err(DecodeError::Sections { what: "there are unknown sections" });
        }
        Ok(map)
    }

    /// Says how many bytes are missing before anything is decoded.
    pub(super) fn check_present(
        &self,
        object: &PartialObject<'_, '_>,
        tasks: &[DecodeTask],
    ) -> Result<(), DecodeError> {
        let end_of = |task: &DecodeTask| {
            let levels = (0..=task.level).map(|level| (BAND_MAIN, level));
            let ids = levels.chain([(BAND_ANCHORS, 0), (BAND_EXACT, 0), (BAND_LOSSLESS, task.level)]);
            ids.filter_map(|(band, level)| object.entry(*task, band, level).map(|(_, range)| range.end)).max()
        };
        let needed = tasks.iter().filter_map(end_of).max().unwrap_or(0);
        let level = Level(tasks.iter().map(|task| task.level).max().unwrap_or(0) as u8);
        let found = object.bytes.len() as u64;
        if needed > found { Err(DecodeError::Short { level, needed, found }) } else { Ok(()) }
    }
}
