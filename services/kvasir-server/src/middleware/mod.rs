//! Middleware around every handler.

pub(crate) mod authorize;
pub(crate) mod credential_watch;
pub(crate) mod label_route;
pub(crate) mod observe_request;
pub(crate) mod request_limits;
