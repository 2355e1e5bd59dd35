//! Who is calling: tenant and role, from the credential alone, never from path or body.
//!
//! Bearer tokens come from a tenants file that holds only their SHA-256; JSON Web Tokens are checked against a JWKS
//! file, an issuer and an audience. Both files are read again when they change. Without either the service takes
//! everybody for the operator, in one tenant, and binds loopback only.

mod brake;
mod gate;
mod jwt;
mod tenants;

use std::{net::IpAddr, path::Path, sync::Arc};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use kvasir_api::{ErrorCode, Problem, Role};
use kvasir_types::Name;

pub(crate) use gate::{Peer, gate};
pub use tenants::NewToken;
pub(crate) use tenants::Quota;

use self::{brake::Brake, jwt::Verifier, tenants::Tenants};
use crate::{config::AuthConfig, handlers::ApiError, limits, reload::Reloaded, state::AppState};

/// Whose request this is and what it may do. Handlers take it as an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Everything the caller sees and stores is under this name.
    pub(crate) tenant: Name,
    pub(crate) role: Role,
    /// Which credential it was, for the audit log: the token's name or the claim `sub`.
    pub(crate) credential: Arc<str>,
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiError;

    /// What the gate put there. Without it the request is refused: a route beside the gate must not be open.
    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        parts.extensions.get().cloned().ok_or_else(|| {
            Problem::new(ErrorCode::Internal, "the route takes a caller but is open to anybody").into()
        })
    }
}

/// A request that is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No credential, or not of the form `Bearer …`.
    Missing,
    /// Not a credential of ours, or not valid now.
    Invalid,
    /// Too many refused credentials from this address.
    Braked,
}

impl Refusal {
    /// Label of metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::Braked => "braked",
        }
    }
}

/// Knows every credential.
#[derive(Debug)]
pub(crate) struct Authority {
    tenants: Option<Reloaded<Tenants>>,
    jwt: Option<Verifier>,
    brake: Brake,
}

/// Credentials that cannot be read at start.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {path}: {problem}")]
pub struct AuthError {
    setting: &'static str,
    path: String,
    problem: String,
}

impl AuthError {
    fn of(setting: &'static str, path: &Path) -> impl Fn(String) -> Self {
        let path = path.display().to_string();
        move |problem| Self { setting, path: path.clone(), problem }
    }
}

impl Authority {
    /// Reads the files of `config`.
    ///
    /// # Errors
    /// [`AuthError`]: at start a file that cannot be used is fatal; later the last good one stays in force.
    pub(crate) fn open(config: &AuthConfig) -> Result<Self, AuthError> {
        let tenants = config.tenants_file.as_deref().map(|path| {
            Reloaded::open(&[path], |files| Tenants::parse(&files[0]))
                .map_err(AuthError::of("auth.tenants_file", path))
        });
        let jwt = config
            .jwt
            .as_ref()
            .map(|jwt| Verifier::open(jwt).map_err(AuthError::of("auth.jwks_file", &jwt.jwks_file)));
        let brake = Brake::new(config.failures_per_minute);
        Ok(Self { tenants: tenants.transpose()?, jwt: jwt.transpose()?, brake })
    }

    /// Whether everybody is let in.
    fn is_open(&self) -> bool {
        self.tenants.is_none() && self.jwt.is_none()
    }

    /// Takes in files that have changed. A file that cannot be used is reported, and what was in force stays.
    pub(crate) fn reload(&self) {
        if let Some(tenants) = &self.tenants {
            tenants.refresh();
        }
        if let Some(jwt) = &self.jwt {
            jwt.refresh();
        }
    }

    /// The quota of a tenant.
    pub(crate) fn quota(&self, tenant: &Name) -> Quota {
        self.tenants.as_ref().map(|tenants| tenants.get().quota(tenant)).unwrap_or_default()
    }

    /// Who sends `headers` from `peer`.
    pub(crate) fn authenticate(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Caller, Refusal> {
        if self.is_open() {
            return Ok(anyone());
        }
        let Some(credential) = bearer(headers) else { return Err(Refusal::Missing) };
        if let Some(caller) = self.tenants.as_ref().and_then(|tenants| tenants.get().caller(credential)) {
            return Ok(caller);
        }
        // A known token costs one hash and always gets in; who guesses is slowed before costlier signatures.
        if peer.is_some_and(|peer| self.brake.is_on(peer)) {
            return Err(Refusal::Braked);
        }
        if let Some(caller) = self.jwt.as_ref().and_then(|jwt| jwt.caller(credential)) {
            return Ok(caller);
        }
        if let Some(peer) = peer {
            self.brake.failed(peer);
        }
        Err(Refusal::Invalid)
    }
}

/// Who calls a service without authentication, which only loopback reaches: everything belongs to one tenant.
fn anyone() -> Caller {
    let tenant = "default".parse().unwrap_or_else(|_| unreachable!("a constant of the alphabet"));
    Caller { tenant, role: Role::Operator, credential: "anyone".into() }
}

/// The credential of `Authorization: Bearer …`, within its limit.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credential) = value.split_once(' ')?;
    let fits = (1..=limits::CREDENTIAL_BYTES_MAX).contains(&credential.len());
    (scheme.eq_ignore_ascii_case("bearer") && fits).then_some(credential)
}

#[cfg(test)]
mod tests;
