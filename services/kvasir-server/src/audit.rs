//! Audit log: a log line for each audited call, and the latest changes in memory.

use std::collections::{HashMap, VecDeque};

use axum::{
    extract::Request,
    http::{Method, StatusCode},
};
use kvasir_api::{AUDIT_CALLS_MAX, AuditedCall, Role, routes};
use kvasir_types::Name;
use parking_lot::Mutex;

use crate::{auth::Principal, limits, state::AppState, wall_clock::unix_ms};

/// The latest changes made through this replica, oldest first.
#[derive(Debug, Default)]
pub(crate) struct AuditLog(Mutex<VecDeque<AuditedCall>>);

impl AuditLog {
    /// The latest changes, newest first: of one tenant, or of all.
    pub(crate) fn last(&self, tenant: Option<&Name>, limit: usize) -> Vec<AuditedCall> {
        let calls = self.0.lock();
        let wanted = calls.iter().rev().filter(|call| tenant.is_none_or(|tenant| call.tenant == *tenant));
        wanted.take(limit).cloned().collect()
    }

    fn keep(&self, call: AuditedCall) {
        let mut calls = self.0.lock();
        if calls.len() >= AUDIT_CALLS_MAX {
            let Some(displaced) = displaced(&calls, &call) else { return };
            calls.remove(displaced);
        }
        calls.push_back(call);
    }
}

/// The call that makes room for another: the oldest refusal of the tenant that has most, or of any tenant; for a change,
/// if there is none, the oldest change of the tenant that has most. So no refusal displaces a change, and no tenant that
/// has less loses what it did to one that has more.
fn displaced(calls: &VecDeque<AuditedCall>, by: &AuditedCall) -> Option<usize> {
    let mut held = HashMap::<&Name, usize>::from([(&by.tenant, 1)]);
    calls.iter().for_each(|call| *held.entry(&call.tenant).or_default() += 1);
    let most = held.into_iter().max_by_key(|(_, count)| *count).map(|(tenant, _)| tenant);
    let is_of_most = |call: &AuditedCall| Some(&call.tenant) == most;
    let is_refused = |call: &AuditedCall| call.status == StatusCode::FORBIDDEN.as_u16();
    let refused = calls.iter().position(|call| is_of_most(call) && is_refused(call));
    let refused = refused.or_else(|| calls.iter().position(is_refused));
    if is_refused(by) { refused } else { refused.or_else(|| calls.iter().position(is_of_most)) }
}

/// The audited facts of a request.
#[derive(Debug)]
pub(crate) struct AuditedRequest {
    method: Method,
    path: String,
    /// Where the key of an object begins, the last part of its path.
    key_at: Option<usize>,
}

impl AuditedRequest {
    /// A request to `route` that needs the role `required`; `None` for routine calls: reads, and stores by
    /// engines.
    pub(crate) fn new(request: &Request, route: &str, required: Role) -> Option<Self> {
        let is_removal = request.method() == Method::DELETE;
        let is_audited = match route {
            routes::CONTEXTS | routes::CONTEXT => is_change(request.method()),
            routes::CHUNK | routes::CHUNK_OBJECT | routes::OBJECT => is_removal,
            _ => required >= Role::Admin,
        };
        is_audited.then(|| Self::of_route(request, route))
    }

    /// Any request to `route`, for example one that its principal's role does not allow.
    pub(crate) fn of_route(request: &Request, route: &str) -> Self {
        let path = request.uri().path();
        let key_at = path.rfind('/').map(|slash| slash + 1).filter(|_| route == routes::OBJECT);
        Self { key_at, ..Self::of(request.method(), path) }
    }

    /// Any request for an object over S3, however it addresses its bucket.
    pub(crate) fn of_s3(method: &Method, bucket: &str, key: &str) -> Self {
        let key_at = Some(bucket.len() + 2);
        Self { key_at, ..Self::of(method, &format!("/{bucket}/{key}")) }
    }

    pub(crate) fn of(method: &Method, path: &str) -> Self {
        let end = path.floor_char_boundary(limits::AUDITED_PATH_BYTES_MAX);
        Self { method: method.clone(), path: path[..end].to_owned(), key_at: None }
    }

    fn without_key(mut self) -> Self {
        if let Some(at) = self.key_at {
            self.path.truncate(at);
            self.path.push_str("{key}");
        }
        self
    }

    /// Writes it to the log; keeps it in memory if it is a change.
    pub(crate) fn record(self, log: &AuditLog, principal: &Principal, status: u16) {
        tracing::info!(
            target: "kvasir::audit",
            tenant = principal.tenant.as_str(),
            credential = &*principal.credential,
            role = principal.role.as_str(),
            method = self.method.as_str(),
            path = self.path,
            status,
            "audited call"
        );
        if is_change(&self.method) {
            log.keep(AuditedCall {
                at_ms: unix_ms(),
                tenant: principal.tenant.clone(),
                credential: principal.credential.to_string(),
                role: principal.role,
                method: self.method.as_str().to_owned(),
                path: self.path,
                status,
            });
        }
    }
}

/// An audited request under way. One that its client gives up may have taken effect, and is recorded as well, with
/// [`limits::STATUS_ABANDONED`].
#[derive(Debug)]
pub(crate) struct OpenAudit {
    state: AppState,
    call: Option<(Principal, AuditedRequest)>,
}

impl OpenAudit {
    /// `request` is `None` for routine calls. The keys of a tenant that is encrypted at rest are not recorded: they are
    /// nowhere in the clear. Before the store answered, it is unknown which tenants are.
    pub(crate) fn new(state: &AppState, principal: &Principal, request: Option<AuditedRequest>) -> Self {
        let is_plain = state.storage().is_ok_and(|storage| !storage.store().seals(&principal.tenant));
        let request = request.map(|request| if is_plain { request } else { request.without_key() });
        Self { state: state.clone(), call: request.map(|request| (principal.clone(), request)) }
    }

    /// Records the request with the status of its response.
    pub(crate) fn end(mut self, status: u16) {
        self.record(status);
    }

    fn record(&mut self, status: u16) {
        if let Some((principal, request)) = self.call.take() {
            request.record(self.state.audit(), &principal, status);
        }
    }
}

impl Drop for OpenAudit {
    fn drop(&mut self) {
        // A panic is answered with 500, further out.
        self.record(if std::thread::panicking() { 500 } else { limits::STATUS_ABANDONED });
    }
}

fn is_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(log: &AuditLog, tenant: &str, method: Method, path: &str) {
        recorded_with(log, tenant, method, path, 202);
    }

    fn recorded_with(log: &AuditLog, tenant: &str, method: Method, path: &str, status: u16) {
        let principal = Principal {
            tenant: tenant.parse().expect("a name"),
            role: Role::Operator,
            credential: "on call".into(),
        };
        AuditedRequest { method, path: path.to_owned(), key_at: None }.record(log, &principal, status);
    }

    #[test]
    fn the_last_changes_are_kept_and_no_reads() {
        let log = AuditLog::default();
        recorded(&log, "a", Method::GET, "/read");
        for n in 0..AUDIT_CALLS_MAX + 5 {
            recorded(&log, if n % 2 == 0 { "a" } else { "b" }, Method::POST, &format!("/{n}"));
        }
        let all = log.last(None, usize::MAX);
        assert_eq!((all.len(), all[0].path.as_str()), (AUDIT_CALLS_MAX, "/1004"));
        let name = "b".parse().expect("a name");
        let of_one = log.last(Some(&name), 2);
        assert_eq!(of_one.iter().map(|call| call.path.as_str()).collect::<Vec<_>>(), ["/1003", "/1001"]);
    }

    #[test]
    fn nobody_displaces_what_another_tenant_did_and_no_refusal_a_change() {
        let log = AuditLog::default();
        recorded(&log, "b", Method::DELETE, "/of b");
        recorded(&log, "a", Method::DELETE, "/of a");
        for n in 0..3 * AUDIT_CALLS_MAX {
            recorded_with(&log, "a", Method::POST, &format!("/{n}"), 403);
        }
        let all = log.last(None, usize::MAX);
        assert_eq!(all.len(), AUDIT_CALLS_MAX);
        let oldest = all.iter().rev().take(2).map(|call| call.path.as_str()).collect::<Vec<_>>();
        assert_eq!(oldest, ["/of b", "/of a"]);
        let log = AuditLog::default();
        for n in 0..AUDIT_CALLS_MAX {
            recorded(&log, "b", Method::DELETE, &format!("/{n}"));
        }
        recorded_with(&log, "a", Method::DELETE, "/refused", 403);
        assert!(log.last(None, usize::MAX).iter().all(|call| call.status == 202), "the log line stays");
    }

    #[test]
    fn changes_by_hand_and_removals_are_audited_and_what_engines_store_is_not() {
        let audited = |method: &str, route: &str, required| {
            let request = Request::builder().method(method).uri("/x").body(axum::body::Body::empty());
            AuditedRequest::new(&request.expect("a request"), route, required).is_some()
        };
        assert!(
            audited("PATCH", routes::CONTEXT, Role::Write) && audited("POST", routes::CONTEXTS, Role::Write)
        );
        for removed in [routes::CHUNK, routes::CHUNK_OBJECT, routes::OBJECT] {
            assert!(audited("DELETE", removed, Role::Write), "{removed}");
        }
        assert!(
            audited("POST", routes::JOBS, Role::Operator) && audited("GET", routes::JOBS, Role::Operator)
        );
        assert!(!audited("PUT", routes::CHUNK, Role::Write) && !audited("GET", routes::CONTEXT, Role::Read));
        assert!(
            !audited("PUT", routes::OBJECT, Role::Write) && !audited("POST", routes::UPLOADS, Role::Write)
        );
    }

    #[test]
    fn the_longest_key_is_recorded_whole() {
        let objects = format!("/v1/namespaces/{}/objects/", "%6E".repeat(128));
        let path = format!("{objects}{}", "%C3%A4".repeat(256));
        let request = Request::builder().method("DELETE").uri(&path);
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let audited = AuditedRequest::new(&request, routes::OBJECT, Role::Write).expect("audited");
        assert_eq!(audited.path, path);
        assert_eq!(audited.without_key().path, format!("{objects}{{key}}"));
    }

    #[test]
    fn a_key_is_left_out_however_it_is_named() {
        let request = Request::builder().method("DELETE").uri("/v1/namespaces/objects/objects/a%2Fb");
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let by_key = AuditedRequest::new(&request, routes::OBJECT, Role::Write).expect("audited");
        assert_eq!(by_key.without_key().path, "/v1/namespaces/objects/objects/{key}");
        let over_s3 = AuditedRequest::of_s3(&Method::DELETE, "n", "a/b");
        assert_eq!((over_s3.path.as_str(), over_s3.key_at), ("/n/a/b", Some(3)));
        assert_eq!(over_s3.without_key().path, "/n/{key}");
        let contexts = AuditedRequest::of(&Method::DELETE, "/v1/contexts/1");
        assert_eq!(contexts.without_key().path, "/v1/contexts/1");
    }
}
