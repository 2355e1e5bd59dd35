//! Profiles by number: a row on disk names its profile by two bytes instead of 32, for a model has a handful of them.
//!
//! ```text
//! row of an object on disk = as `row` has it, but for the profile: id 2 (FFFF: the profile follows, 32)
//! id 2, in a tree of its own → profile 32
//! ```
//! A row's checksum is over the row itself, so an id that names another profile makes the row a corrupt one.

use std::collections::HashMap;

use parking_lot::RwLock;

use super::{IndexError, key::is_info, row::PROFILE};

/// Marks a profile without a number.
const NONE: u16 = u16::MAX;

#[derive(Debug)]
pub(super) struct ProfileIds {
    tree: sled::Tree,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    profiles: Vec<[u8; 32]>,
    ids: HashMap<[u8; 32], u16>,
}

impl Known {
    fn add(&mut self, profile: [u8; 32]) -> u16 {
        let id = self.profiles.len() as u16;
        self.profiles.push(profile);
        self.ids.insert(profile, id);
        id
    }
}

impl ProfileIds {
    /// Loads the ids in the tree.
    pub(super) fn open(tree: sled::Tree) -> Result<Self, IndexError> {
        let mut known = Known::default();
        for row in &tree {
            let (id, profile) = row.map_err(super::sled_index::error)?;
            let is_next = *id == (known.profiles.len() as u16).to_be_bytes();
            let profile = profile.first_chunk().filter(|_| is_next).ok_or_else(corrupt)?;
            known.add(*profile);
        }
        Ok(Self { tree, known: RwLock::new(known) })
    }

    /// The id of a profile; assigns one if it has none.
    fn id(&self, profile: &[u8; 32]) -> Result<u16, IndexError> {
        if let Some(id) = self.known.read().ids.get(profile) {
            return Ok(*id);
        }
        let mut known = self.known.write();
        if let Some(id) = known.ids.get(profile) {
            return Ok(*id);
        }
        if known.profiles.len() >= usize::from(NONE) {
            return Ok(NONE);
        }
        let id = known.add(*profile);
        // Written before any row that uses it.
        self.tree.insert(id.to_be_bytes(), profile).map_err(super::sled_index::error)?;
        Ok(id)
    }

    /// A row in its form on disk.
    pub(super) fn shorten(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        let Some(profile) = value.get(PROFILE).filter(|_| is_info(key)) else { return Ok(None) };
        let profile = profile.first_chunk().ok_or_else(corrupt)?;
        let id = self.id(profile)?;
        let mut short = value[..PROFILE.start].to_vec();
        short.extend(id.to_le_bytes());
        if id == NONE {
            short.extend(profile);
        }
        short.extend(&value[PROFILE.end..]);
        Ok(Some(short))
    }

    /// A row in its form before [`shorten`](Self::shorten).
    pub(super) fn lengthen(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        if !is_info(key) {
            return Ok(None);
        }
        let (front, rest) = value.split_at_checked(PROFILE.start).ok_or_else(corrupt)?;
        let (id, rest) = rest.split_first_chunk().ok_or_else(corrupt)?;
        let id = u16::from_le_bytes(*id);
        let mut long = front.to_vec();
        if id != NONE {
            let known = self.known.read();
            long.extend(known.profiles.get(usize::from(id)).ok_or_else(corrupt)?);
        }
        long.extend(rest);
        Ok(Some(long))
    }
}

fn corrupt() -> IndexError {
    IndexError::Corrupt { what: "the profile of a row".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_over_a_restart_and_with_more_profiles_than_ids() {
        let directory = tempfile::tempdir().expect("a directory");
        let db = sled::open(directory.path()).expect("opens");
        let open = || ProfileIds::open(db.open_tree("profiles").expect("opens")).expect("sound");
        let row = |n: u8| [&[2; PROFILE.start][..], &[n; 32], b"the rest"].concat();
        let (info, other) = (b"i\0", b"m\0");
        let ids = open();
        let short: Vec<_> =
            [3, 4, 3].map(|n| ids.shorten(info, &row(n)).expect("room").expect("an object's")).into();
        assert!(short.iter().all(|short| short.len() == row(3).len() - 30) && short[0] == short[2]);
        assert_eq!(ids.shorten(other, &row(3)).expect("none of its own"), None);
        assert_eq!(ids.lengthen(other, &row(3)).expect("none of its own"), None);
        let again = open();
        for (n, short) in [(3, &short[0]), (4, &short[1])] {
            assert_eq!(again.lengthen(info, short).expect("known"), Some(row(n)));
        }
        let mut unknown = short[0].clone();
        unknown[PROFILE.start] = 7;
        assert!(again.lengthen(info, &unknown).is_err());
        assert!(again.lengthen(info, b"short").is_err());
        again.known.write().profiles.resize(usize::from(NONE), [0; 32]);
        let whole = again.shorten(info, &row(9)).expect("without an id").expect("an object's");
        assert_eq!(again.lengthen(info, &whole).expect("whole"), Some(row(9)));
    }
}
