//! Authentication: tenant and role come from the credential alone, never from path or body.
//!
//! Bearer tokens come from a tenants file that holds only their SHA-256. JSON Web Tokens are checked against
//! a JWKS file, an issuer and an audience. Both files are reloaded when they change. Without either, the
//! service treats every caller as the operator, in one tenant, and binds to loopback only.

mod authenticator;
mod failure_limiter;
mod jwt;
mod principal;
mod tenants;

pub(crate) use authenticator::{AuthFailure, Authenticator};
pub(crate) use failure_limiter::network;
pub(crate) use principal::Principal;
pub(crate) use tenants::Quota;
pub use tenants::{NewAccessKey, NewToken};
#[cfg(any(test, fuzzing))]
pub use {jwt::fuzz as fuzz_web_token, tenants::fuzz as fuzz_tenants_file};

#[cfg(test)]
mod tests;
