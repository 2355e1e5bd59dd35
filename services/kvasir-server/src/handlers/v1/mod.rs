//! The API, one module a resource.

pub(super) mod admin;
mod body;
pub(super) mod chunks;
mod conditional;
pub(super) mod config;
pub(super) mod contexts;
pub(super) mod events;
pub(super) mod explain;
mod hint;
pub(super) mod lookup;
pub(super) mod models;
pub(super) mod namespaces;
pub(super) mod profiles;
mod selection;
pub(super) mod uploads;

use std::{fmt::Display, str::FromStr};

use super::ApiError;

/// An id of the path.
fn id<T: FromStr<Err: Display>>(what: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|e| ApiError::bad_request(format!("{what} in the path: {e}")))
}
