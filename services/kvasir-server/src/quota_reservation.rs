//! Reservations of a tenant's storage quota for pending writes.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use kvasir_api::{ErrorCode, Problem};
use kvasir_storage::{QuotaError, Reservation, Stored};
use kvasir_types::Name;
use uuid::Uuid;

use crate::{api_error::ApiError, auth::Principal, state::AppState};

/// Reserves quota for one object of `bytes`, until the reservation is dropped. Writes of bodies that go on without
/// their client keep it. A tenant without a limit needs none.
///
/// # Errors
/// `storage_quota`.
pub(crate) async fn reserve(
    state: &AppState,
    principal: &Principal,
    bytes: u64,
) -> Result<Option<Arc<Reservation>>, ApiError> {
    reserve_all(state, principal, Stored::one(bytes)).await
}

async fn reserve_all(
    state: &AppState,
    principal: &Principal,
    wanted: Stored,
) -> Result<Option<Arc<Reservation>>, ApiError> {
    let quota = state.authenticator().quota(&principal.tenant).stored();
    if quota.is_open() {
        return Ok(None);
    }
    let changes = state.caught_up_storage().await?.changes();
    let reserved = changes.reserve(&principal.tenant, quota, wanted).await.inspect_err(|error| {
        if let QuotaError::Full { limit, .. } = error {
            state.metrics().throttled(limit);
        }
    });
    Ok(Some(Arc::new(reserved?)))
}

/// Like [`reserve`], for an object under a key of `namespace`, and for the namespace's record if that is not there.
///
/// # Errors
/// `storage_quota`, and the store's.
pub(crate) async fn reserve_object(
    state: &AppState,
    principal: &Principal,
    namespace: &Name,
    bytes: u64,
) -> Result<Option<Arc<Reservation>>, ApiError> {
    let is_new = needs_record(state, principal, namespace).await?;
    reserve_all(state, principal, Stored { objects: 1 + u64::from(is_new), bytes }).await
}

/// Like [`reserve`], for the record of a namespace. One that has it needs no room.
///
/// # Errors
/// `storage_quota`, and the store's.
pub(crate) async fn reserve_namespace(
    state: &AppState,
    principal: &Principal,
    namespace: &Name,
) -> Result<Option<Arc<Reservation>>, ApiError> {
    match needs_record(state, principal, namespace).await? {
        true => reserve(state, principal, 0).await,
        false => Ok(None),
    }
}

/// Whether room is needed for the record of a namespace. Asks the store only if the tenant has a limit.
async fn needs_record(state: &AppState, principal: &Principal, namespace: &Name) -> Result<bool, ApiError> {
    let tenant = &principal.tenant;
    if state.authenticator().quota(tenant).stored().is_open() {
        return Ok(false);
    }
    Ok(!state.storage()?.catalog().has_namespace(tenant, namespace).await?)
}

/// Like [`reserve`], for the commit of a direct upload: its bytes count where it was announced, and on other
/// replicas from now on, so that uploads announced on several replicas do not exceed the limit together.
///
/// # Errors
/// `storage_quota`, `unknown_upload`, and the store's.
pub(crate) async fn reserve_commit(
    state: &AppState,
    principal: &Principal,
    upload_id: Uuid,
) -> Result<Option<Arc<Reservation>>, ApiError> {
    if state.authenticator().quota(&principal.tenant).stored().is_open() {
        return Ok(None);
    }
    let bytes = state.storage()?.direct_uploads().uncounted_bytes(&principal.tenant, upload_id).await?;
    reserve(state, principal, bytes).await
}

/// Like [`reserve`], for a body whose length is in its headers.
///
/// # Errors
/// `storage_quota`; `bad_request` if the length is missing and the tenant has a limit.
pub(crate) async fn reserve_body(
    state: &AppState,
    principal: &Principal,
    headers: &HeaderMap,
) -> Result<Option<Arc<Reservation>>, ApiError> {
    if state.authenticator().quota(&principal.tenant).stored().is_open() {
        return Ok(None);
    }
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let Some(bytes) = length else {
        let detail =
            "the tenant has a storage quota: send the body with Content-Length, not with chunked encoding";
        return Err(Problem::new(ErrorCode::BadRequest, detail).into());
    };
    reserve(state, principal, bytes).await
}
