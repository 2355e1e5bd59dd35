//! Names of tenants, namespaces and labels.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::NAME_BYTES_MAX;

/// A tenant, namespace or replica name: 1 to [`NAME_BYTES_MAX`] characters of `a-z A-Z 0-9 . _ -`, not
/// starting with a dot, so that it is a safe path segment on every store. Clones share the text: a lookup makes one for
/// each chunk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

/// Why a name is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty or longer than [`NAME_BYTES_MAX`].
    #[error("a name must have 1 to {NAME_BYTES_MAX} bytes; this one has {bytes}")]
    Length {
        /// Length found.
        bytes: usize,
    },
    /// A character outside the alphabet, or a leading dot.
    #[error("a name must consist of a-z A-Z 0-9 . _ - and not start with a dot: {found:?} is not allowed")]
    Character {
        /// The first invalid character.
        found: char,
    },
}

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(s: &str) -> Result<Self, NameError> {
        if s.is_empty() || s.len() > NAME_BYTES_MAX {
            return Err(NameError::Length { bytes: s.len() });
        }
        let allowed =
            |i: usize, c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || (c == '.' && i > 0);
        match s.char_indices().find(|&(i, c)| !allowed(i, c)) {
            Some((_, found)) => Err(NameError::Character { found }),
            None => Ok(Self(s.into())),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(s: String) -> Result<Self, NameError> {
        s.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Name {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        let about = "A name: 1 to 128 characters of a-z A-Z 0-9 . _ -, not starting with a dot.";
        crate::schema::text(about, "^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,127}$")
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Name {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_single_harmless_segments() {
        for good in ["default", "team-a", "a.b_c", "0"] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ä", "a\0", &"x".repeat(129)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn clones_share_their_text() {
        let name: Name = "team-a".parse().expect("a name");
        assert!(std::ptr::eq(name.as_str(), name.clone().as_str()));
        let text = serde_json::to_string(&name).expect("JSON");
        assert_eq!((text.as_str(), serde_json::from_str(&text).ok()), ("\"team-a\"", Some(name)));
    }
}
