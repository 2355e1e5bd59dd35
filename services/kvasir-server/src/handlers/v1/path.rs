//! Parameters of the path.

use std::{fmt::Display, str::FromStr};

use crate::api_error::ApiError;

/// An id of the path.
pub(super) fn id<T: FromStr<Err: Display>>(what: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|e| ApiError::bad_request(format!("{what} in the path: {e}")))
}
