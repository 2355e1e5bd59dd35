//! Who is calling: tenant and role, from the credential alone, never from path or body.

mod gate;

use axum::{extract::FromRequestParts, http::request::Parts};
use kvasir_api::{ErrorCode, Problem, Role};
use kvasir_types::Name;

pub(crate) use gate::gate;

use crate::{handlers::ApiError, state::AppState};

/// Whose request this is and what it may do. Handlers take it as an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Everything the caller sees and stores is under this name.
    pub(crate) tenant: Name,
    pub(crate) role: Role,
}

impl Caller {
    /// Who calls a service without authentication, which only loopback reaches: everything belongs to one tenant.
    fn anyone() -> Self {
        let tenant = "default".parse().unwrap_or_else(|_| unreachable!("a constant of the alphabet"));
        Self { tenant, role: Role::Admin }
    }
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
