//! Typed access to a configuration's fields; `null` is absent, except to `contains`.

use serde_json::{Map, Value};

use super::HfError;

/// Most characters of a value that an error message repeats.
const VALUE_CHARS_MAX: usize = 80;

/// An object of the configuration, and its path.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(value: &'a Value) -> Option<Self> {
        Some(Self { path: String::new(), map: value.as_object()? })
    }

    /// Whether the field is there, be it `null`.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    /// The error about a field.
    pub(super) fn refused(&self, name: &str, advice: impl Into<String>) -> HfError {
        let text = self.get(name).map_or_else(|| "missing".to_owned(), Value::to_string);
        let mut value: String = text.chars().take(VALUE_CHARS_MAX).collect();
        if value.len() < text.len() {
            value.push('…');
        }
        HfError::Field { field: format!("{}{name}", self.path), value, advice: advice.into() }
    }

    fn typed<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, HfError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.refused(name, format!("must be {wanted}")))
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<Self>, HfError> {
        let path = format!("{}{name}.", self.path);
        Ok(self.typed(name, "an object", Value::as_object)?.map(|map| Self { path, map }))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, HfError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(super) fn required_text(&self, name: &str) -> Result<&'a str, HfError> {
        self.text(name)?.ok_or_else(|| self.refused(name, "needed"))
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, HfError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A count, at most `u32::MAX`. Some files write whole numbers as floats.
    pub(super) fn uint(&self, name: &str) -> Result<Option<u32>, HfError> {
        let whole = |value: &Value| {
            let float =
                value.as_f64().filter(|v| v.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(v));
            value.as_u64().and_then(|v| u32::try_from(v).ok()).or(float.map(|v| v as u32))
        };
        self.typed(name, "a whole number from 0", whole)
    }

    pub(super) fn required(&self, name: &str) -> Result<u32, HfError> {
        match self.uint(name)? {
            Some(0) | None => Err(self.refused(name, "required, and must be above 0")),
            Some(value) => Ok(value),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, HfError> {
        self.typed(name, "a finite number", |value| value.as_f64().filter(|v| v.is_finite()))
    }

    pub(super) fn list<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, HfError> {
        self.typed(name, wanted, |value| value.as_array()?.iter().map(&read).collect())
    }
}
