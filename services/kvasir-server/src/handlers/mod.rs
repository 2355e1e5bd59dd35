//! Handlers: the OpenAPI document, probes, and the API.

pub(crate) mod console;
pub(crate) mod openapi;
pub(crate) mod ops;
pub(crate) mod v1;
