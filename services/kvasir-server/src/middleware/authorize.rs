//! Authenticates and authorizes every request before its handler, and enforces the quota of its tenant.

use std::net::IpAddr;

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use kvasir_api::{ErrorCode, Problem, Role, required_role};

use crate::{
    api_error::ApiError,
    audit::{AuditedRequest, OpenAudit},
    auth::{AuthFailure, Principal},
    handlers::v1::{body, hint},
    middleware::credential_watch::CredentialWatch,
    state::AppState,
};

/// The client address of a request. The accept loop adds it to the request's extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) IpAddr);

/// Forwards a request that its principal's role and quota allow, with the [`Principal`] in its extensions.
pub(crate) async fn authorize(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map(MatchedPath::as_str);
    // An unknown route is reported only after authentication.
    let required = match route {
        Some(route) => match required_role(request.method().as_str(), route) {
            Some(required) => required,
            None => return next.run(request).await,
        },
        None => Role::Read,
    };
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let principal = match state.authenticator().authenticate(request.headers(), peer) {
        Ok(principal) => principal,
        Err(failure) => {
            state.metrics().auth_refused(failure.as_str());
            return unauthenticated(failure);
        }
    };
    state.journal().note_request();
    let permit =
        match state.quota_limiter().admit(&principal.tenant, &state.authenticator().quota(&principal.tenant))
        {
            Ok(permit) => permit,
            Err(exceeded) => {
                state.metrics().throttled(exceeded.limit);
                return exceeded.into_response();
            }
        };
    // Within the quota: each refusal is a line of the audit log.
    if principal.role < required {
        state.metrics().auth_refused("role");
        let refused = AuditedRequest::of_route(&request, route.unwrap_or_default());
        OpenAudit::new(&state, &principal, Some(refused)).end(403);
        let (needed, held) = (required.as_str(), principal.role.as_str());
        let detail = format!("this needs the role {needed}, the credential has {held}");
        return ApiError::from(Problem::new(ErrorCode::Forbidden, detail)).into_response();
    }
    let audited = AuditedRequest::new(&request, route.unwrap_or_default(), required);
    let audited = OpenAudit::new(&state, &principal, audited);
    let deadline = match hint::deadline(request.headers()) {
        Ok(deadline) => deadline,
        Err(refused) => {
            audited.end(400);
            return refused.into_response();
        }
    };
    let tenant = principal.tenant.clone();
    let watch = watch(&state, &request, &principal);
    request.extensions_mut().insert(principal);
    if let Some(watch) = &watch {
        request = watch.request(request);
    }
    let mut response = body::of_tenant(tenant.clone(), next.run(request)).await;
    let paced = |response| match state.egress() {
        Some(egress) => egress.schedule(&tenant, deadline, response),
        None => response,
    };
    // The handler only saw a broken body; the cause is known here.
    let was_cut = watch.as_ref().is_some_and(CredentialWatch::has_ended) && !response.status().is_success();
    if was_cut {
        response = unauthenticated(AuthFailure::Invalid);
    }
    audited.end(response.status().as_u16());
    let response = match watch.filter(|_| !was_cut) {
        Some(watch) => watch.response(response, paced),
        None => paced(response),
    };
    match permit {
        Some(permit) => permit.charge(response),
        None => response,
    }
}

/// Watches the credential of a request; `None` if none is required.
fn watch(state: &AppState, request: &Request, principal: &Principal) -> Option<CredentialWatch> {
    let credential = state.authenticator().credential(request.headers())?;
    let (state, principal) = (state.clone(), principal.clone());
    Some(CredentialWatch::new(move || {
        let is_in_force = state.authenticator().is_in_force(&credential, &principal);
        if !is_in_force {
            state.metrics().auth_refused("ended");
        }
        is_in_force
    }))
}

fn unauthenticated(failure: AuthFailure) -> Response {
    let code = match failure {
        AuthFailure::Missing | AuthFailure::Invalid => ErrorCode::Unauthorized,
        AuthFailure::RateLimited => ErrorCode::Throttled,
        AuthFailure::OtherPage | AuthFailure::OtherHost => ErrorCode::Forbidden,
    };
    let mut response = ApiError::from(Problem::new(code, failure.detail())).into_response();
    let headers = response.headers_mut();
    match failure {
        AuthFailure::RateLimited => headers.insert(header::RETRY_AFTER, 60.into()),
        AuthFailure::OtherPage | AuthFailure::OtherHost => None,
        _ => headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"kvasir\"")),
    };
    response
}
