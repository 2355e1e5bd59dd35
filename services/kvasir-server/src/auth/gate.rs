//! Before every handler: who calls, may they, and is it within their quota?

use std::net::IpAddr;

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use kvasir_api::{ErrorCode, Problem, Role, required_role};

use super::{Caller, Refusal};
use crate::{handlers::ApiError, state::AppState};

/// Where a request comes from: an extension that the accept loop puts into it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Lets through what the caller's role and quota allow, with the [`Caller`] among the request's extensions.
pub(crate) async fn gate(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let method = request.method().clone();
    // Whoever asks for a route that is not there is told so, once it is known who it is.
    let required = match &route {
        Some(route) => match required_role(method.as_str(), route) {
            Some(required) => required,
            None => return next.run(request).await,
        },
        None => Role::Read,
    };
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let caller = match state.authority().authenticate(request.headers(), peer) {
        Ok(caller) => caller,
        Err(refusal) => {
            state.metrics().refused(refusal.as_str());
            return refused(refusal);
        }
    };
    if caller.role < required {
        state.metrics().refused("role");
        Head::of(&request).audit(&caller, 403);
        let (needed, held) = (required.as_str(), caller.role.as_str());
        let detail = format!("this needs the role {needed}, the credential has {held}");
        return ApiError::from(Problem::new(ErrorCode::Forbidden, detail)).into_response();
    }
    let permit = match state.meters().admit(&caller.tenant, &state.authority().quota(&caller.tenant)) {
        Ok(permit) => permit,
        Err(exceeded) => {
            state.metrics().throttled(exceeded.limit);
            return exceeded.into_response();
        }
    };
    let line = (required >= Role::Admin).then(|| (caller.clone(), Head::of(&request)));
    let tenant = caller.tenant.clone();
    request.extensions_mut().insert(caller);
    let response = next.run(request).await;
    if let Some((caller, head)) = line {
        head.audit(&caller, response.status().as_u16());
    }
    let response = match permit {
        Some(permit) => permit.charge(response),
        None => response,
    };
    match state.link() {
        Some(link) => link.share(&tenant, response),
        None => response,
    }
}

fn refused(refusal: Refusal) -> Response {
    let (code, detail) = match refusal {
        Refusal::Missing => (ErrorCode::Unauthorized, "send the credential as `Authorization: Bearer …`"),
        Refusal::Invalid => (ErrorCode::Unauthorized, "the credential is not known here or not valid now"),
        Refusal::Braked => {
            (ErrorCode::Throttled, "too many refused credentials from this address; wait a minute")
        }
    };
    let mut response = ApiError::from(Problem::new(code, detail)).into_response();
    let headers = response.headers_mut();
    match refusal {
        Refusal::Braked => headers.insert(header::RETRY_AFTER, 60.into()),
        _ => headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"kvasir\"")),
    };
    response
}

/// What the audit log says of a request.
struct Head {
    method: String,
    path: String,
}

impl Head {
    fn of(request: &Request) -> Self {
        Self { method: request.method().to_string(), path: request.uri().path().to_owned() }
    }

    fn audit(&self, caller: &Caller, status: u16) {
        tracing::info!(
            target: "kvasir::audit",
            tenant = caller.tenant.as_str(),
            credential = &*caller.credential,
            role = caller.role.as_str(),
            method = self.method,
            path = self.path,
            status,
            "admin call"
        );
    }
}
