//! Storing several opaque objects with one request.

use std::sync::Arc;

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, State},
    http::HeaderMap,
};
use futures::{SinkExt, Stream, StreamExt, channel::mpsc};
use kvasir_api::{
    ErrorCode, MEDIA_NEW_OBJECTS, NewObject, ObjectsRequest, Problem, StoredObject, WriteObjectsRequest,
    WriteObjectsResponse, WrittenObject, routes,
};
use kvasir_storage::PutObject;
use kvasir_store::trace::carry;
use kvasir_types::Name;
use tokio::{sync::Semaphore, task::JoinHandle};

use super::{
    body, hint,
    objects::{is_create, unless_refused},
    path::id,
};
use crate::{api_error::ApiError, auth::Principal, limits, quota_reservation, state::AppState};

/// Stores several objects, each as `PUT` does and with its own result; with `If-None-Match: *`, one whose key
/// has any object is refused. While one is made durable, the next ones are received. A body whose length is
/// not that of its list and its objects is refused before any is stored. Of one that breaks off, the objects
/// that came whole are stored or refused; the error says how many.
#[utoipa::path(post, path = routes::OBJECTS_WRITE, operation_id = "write_opaque_objects", tag = "objects",
    params(("namespace" = Name, Path, description = "the keys' namespace"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: an object whose key has any is refused")),
    request_body(content = inline(kvasir_api::Binary), content_type = MEDIA_NEW_OBJECTS,
                 description = "the length of the JSON as u32 little endian, a WriteObjectsRequest as JSON, then the bytes of the objects"),
    responses((status = 200, description = "the result of each", body = WriteObjectsResponse)))]
pub(in crate::handlers) async fn write(
    State(state): State<AppState>,
    principal: Principal,
    Path(namespace): Path<String>,
    headers: HeaderMap,
    request_body: Body,
) -> Result<Json<WriteObjectsResponse>, ApiError> {
    let settings = state.storage()?.settings();
    let (bytes_max, parallel) = (settings.chunk_bytes_max, settings.lookup_parallel.max(1));
    let (namespace, hint): (Name, _) =
        (id("namespace", &namespace)?, hint::parse(state.cluster(), &headers)?);
    let is_create = is_create(&headers)?;
    body::check_length(&headers, bytes_max.saturating_add(limits::NEW_OBJECTS_HEAD_BYTES_MAX as u64))?;
    let no_length = || {
        let detail = "send the body with Content-Length, not with chunked encoding: it is compared before anything is stored";
        Problem::new(ErrorCode::LengthRequired, detail)
    };
    let declared = body::declared_length(&headers).ok_or_else(no_length)?;
    let mut received = Received { parts: body::upload(&state, request_body), held: Bytes::new() };
    let at_once = Arc::new(Semaphore::new(parallel));
    let mut storing: Vec<Storing> = Vec::new();
    let whole = async {
        let objects = received.head(bytes_max, declared).await?;
        // Room for the record of their namespace, once for all of them.
        let namespace_room = quota_reservation::reserve_namespace(&state, &principal, &namespace).await?;
        for NewObject { key, bytes } in objects {
            let permit =
                Arc::clone(&at_once).acquire_owned().await.map_err(|error| ApiError::internal(&error))?;
            let (tenant, namespace, hint) = (principal.tenant.clone(), namespace.clone(), hint.clone());
            let put = PutObject { tenant, namespace, key, bytes, hint, listed: false, reservation: None };
            let (mut sender, parts) = mpsc::channel(0);
            let (state, principal) = (state.clone(), principal.clone());
            let held = (permit, namespace_room.clone());
            storing.push(tokio::spawn(carry(async move {
                let _held = held;
                store(&state, &principal, put, parts).await
            })));
            let mut left = bytes;
            while left > 0 {
                let part = received.next(left).await?;
                left -= part.len() as u64;
                // A closed receiver means that the object was refused; skip its bytes.
                let _ = sender.send(Ok::<_, axum::Error>(part)).await;
            }
        }
        Ok::<_, ApiError>(())
    };
    if let Err(error) = whole.await {
        body::drain(received.parts).await;
        return Err(match storing.pop() {
            None => error,
            // This one lacks bytes.
            Some(_) => broken_off(&error, &outcomes(storing, is_create).await),
        });
    }
    Ok(Json(WriteObjectsResponse { objects: outcomes(storing, is_create).await }))
}

/// An object that is being stored.
type Storing = JoinHandle<Result<StoredObject, ApiError>>;

/// The outcome of each object, once all are stored or refused.
async fn outcomes(storing: Vec<Storing>, is_create: bool) -> Vec<WrittenObject> {
    let mut objects = Vec::with_capacity(storing.len());
    for task in storing {
        // A panic is the problem of its object alone; the others may be stored.
        let answer = task.await.unwrap_or_else(|error| Err(ApiError::internal(&error)));
        objects.push(match answer.and_then(|stored| unless_refused(is_create, stored)) {
            Ok(StoredObject { created, .. }) => WrittenObject { created, problem: None },
            Err(error) => WrittenObject { created: false, problem: Some(error.problem().clone()) },
        });
    }
    objects
}

/// The error of a body that breaks off behind the objects `before`.
fn broken_off(error: &ApiError, before: &[WrittenObject]) -> ApiError {
    let Problem { code, detail, .. } = error.problem();
    let stored = before.iter().filter(|object| object.problem.is_none()).count();
    let whole = before.len();
    let detail = format!(
        "{detail}; the first {whole} objects of its list came whole, and {stored} of these are stored"
    );
    Problem::new(*code, detail).into()
}

async fn store(
    state: &AppState,
    principal: &Principal,
    mut put: PutObject,
    parts: impl Stream<Item = Result<Bytes, axum::Error>> + Send,
) -> Result<StoredObject, ApiError> {
    put.reservation = quota_reservation::reserve(state, principal, put.bytes).await?;
    let stored = state.storage()?.ingest().put_object(put, parts).await?;
    state.metrics().object_stored(&stored);
    Ok(stored)
}

/// Size of the length field before the list of objects.
const LENGTH_BYTES: usize = 4;

/// A body that is read in pieces of given lengths.
struct Received<S> {
    parts: S,
    held: Bytes,
}

impl<S: Stream<Item = Result<Bytes, axum::Error>> + Unpin> Received<S> {
    /// The next bytes, at least one and at most `most`.
    async fn next(&mut self, most: u64) -> Result<Bytes, ApiError> {
        while self.held.is_empty() {
            let part = self.parts.next().await;
            let part = part
                .ok_or_else(|| ApiError::bad_request("the body ends before its last object is complete"))?;
            self.held =
                part.map_err(|error| ApiError::bad_request(format!("the body broke off: {error}")))?;
        }
        let taken = self.held.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(self.held.split_to(taken))
    }

    async fn exactly(&mut self, length: usize) -> Result<Vec<u8>, ApiError> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let part = self.next((length - bytes.len()) as u64).await?;
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }

    /// The list of objects in a body of `declared` bytes, together at most `bytes_max` bytes.
    async fn head(&mut self, bytes_max: u64, declared: u64) -> Result<Vec<NewObject>, ApiError> {
        let length = self.exactly(LENGTH_BYTES).await?;
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
        if length > limits::NEW_OBJECTS_HEAD_BYTES_MAX {
            let detail =
                format!("{length} bytes of JSON; the maximum is {}", limits::NEW_OBJECTS_HEAD_BYTES_MAX);
            return Err(ApiError::bad_request(detail));
        }
        let WriteObjectsRequest { objects } =
            serde_json::from_slice(&self.exactly(length).await?).map_err(|error| {
                ApiError::bad_request(format!("the body does not begin with valid JSON: {error}"))
            })?;
        if objects.len() > ObjectsRequest::KEYS_MAX {
            let detail = format!("more than {} objects; send several requests", ObjectsRequest::KEYS_MAX);
            return Err(ApiError::bad_request(detail));
        }
        let bytes = objects.iter().fold(0u64, |sum, object| sum.saturating_add(object.bytes));
        if bytes > bytes_max {
            return Err(body::too_large(bytes_max));
        }
        let whole = bytes.saturating_add((LENGTH_BYTES + length) as u64);
        if declared != whole {
            let detail = format!("the body has {declared} bytes; its list and its objects have {whole}");
            return Err(ApiError::bad_request(detail));
        }
        Ok(objects)
    }
}
