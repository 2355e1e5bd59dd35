//! Access control of the S3 front end: access keys of the tenants file, their roles, their quotas.

use std::sync::Arc;

use kvasir_api::Role;
use kvasir_store::Secret;
use kvasir_types::Name;
use parking_lot::Mutex;
use s3s::{
    S3Result,
    access::{S3Access, S3AccessContext},
    auth::{S3Auth, SecretKey},
    path::S3Path,
    s3_error,
};

use crate::{
    audit::{AuditedRequest, OpenAudit},
    auth::Principal,
    middleware::credential_watch::CredentialWatch,
    quota::RequestPermit,
    state::AppState,
};

/// Supported operations, each with its label and required role. All others are not implemented.
const OPERATIONS: &[(&str, &str, Role)] = &[
    ("GetObject", "s3:GetObject", Role::Read),
    ("HeadObject", "s3:HeadObject", Role::Read),
    ("ListObjects", "s3:ListObjects", Role::Read),
    ("ListObjectsV2", "s3:ListObjectsV2", Role::Read),
    ("ListBuckets", "s3:ListBuckets", Role::Read),
    ("HeadBucket", "s3:HeadBucket", Role::Read),
    ("GetBucketLocation", "s3:GetBucketLocation", Role::Read),
    ("PutObject", "s3:PutObject", Role::Write),
    ("DeleteObject", "s3:DeleteObject", Role::Write),
    ("DeleteObjects", "s3:DeleteObjects", Role::Write),
    ("CreateBucket", "s3:CreateBucket", Role::Write),
    ("CreateMultipartUpload", "s3:CreateMultipartUpload", Role::Write),
    ("UploadPart", "s3:UploadPart", Role::Write),
    ("CompleteMultipartUpload", "s3:CompleteMultipartUpload", Role::Write),
    ("AbortMultipartUpload", "s3:AbortMultipartUpload", Role::Write),
];

/// The result of a request's access check, for the layers around it.
#[derive(Debug, Clone, Default)]
pub(super) struct CallRecord(Arc<Mutex<Call>>);

#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) operation: Option<&'static str>,
    pub(super) tenant: Option<Name>,
    pub(super) permit: Option<RequestPermit>,
    /// Whether its signature was right, so that the access check came to it.
    pub(super) is_checked: bool,
    access_key: Option<SigningKey>,
}

/// The access key that signed a call.
#[derive(Debug, Clone)]
struct SigningKey {
    id: String,
    secret: Secret,
    principal: Principal,
}

impl CallRecord {
    /// Watches the access key of a call, from the time it is known.
    pub(super) fn watch(&self, state: &AppState) -> CredentialWatch {
        let (state, record) = (state.clone(), self.clone());
        CredentialWatch::new(move || {
            let held = record.0.lock().access_key.clone();
            let is_in_force = held.is_none_or(|SigningKey { id, secret, principal }| {
                state.authenticator().is_access_key_in_force(&id, &secret, &principal)
            });
            if !is_in_force {
                state.metrics().auth_refused("ended");
            }
            is_in_force
        })
    }

    /// Whose call it is, once that is known.
    pub(super) fn tenant(&self) -> Option<Name> {
        self.0.lock().tenant.clone()
    }

    /// Takes what the layers around a call need; the watched key is kept.
    pub(super) fn take(&self) -> Call {
        let mut call = self.0.lock();
        let access_key = call.access_key.clone();
        std::mem::replace(&mut call, Call { access_key, ..Call::default() })
    }
}

/// Secrets of access keys, for signatures.
pub(super) struct AccessKeys {
    state: AppState,
}

impl AccessKeys {
    pub(super) fn new(state: AppState) -> Self {
        Self { state }
    }
}

#[async_trait::async_trait]
impl S3Auth for AccessKeys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.state.authenticator().access_key(access_key) {
            Some((_, secret)) => Ok(SecretKey::from(secret.expose())),
            None => Err(s3_error!(
                InvalidAccessKeyId,
                "the access key is unknown to this service or not valid now"
            )),
        }
    }
}

/// Authorizes every operation, and enforces the quota of its tenant.
pub(super) struct AccessCheck {
    state: AppState,
}

impl AccessCheck {
    pub(super) fn new(state: AppState) -> Self {
        Self { state }
    }
}

#[async_trait::async_trait]
impl S3Access for AccessCheck {
    async fn check(&self, request: &mut S3AccessContext<'_>) -> S3Result<()> {
        if let Some(CallRecord(call)) = request.extensions_mut().get() {
            call.lock().is_checked = true;
        }
        let known = OPERATIONS.iter().find(|(name, ..)| *name == request.s3_op().name());
        let authenticator = self.state.authenticator();
        // Before signatures: a page can sign with the key of a service that needs none.
        if let Err(failure) = authenticator.check_page(request.headers()) {
            self.state.metrics().auth_refused(failure.as_str());
            return Err(s3_error!(AccessDenied, "{}", failure.detail()));
        }
        let principal = match request.credentials() {
            Some(signed) => authenticator.access_key(&signed.access_key).map(|(principal, _)| principal),
            None => authenticator.anonymous(),
        };
        let Some(principal) = principal else {
            self.state.metrics().auth_refused("missing");
            return Err(s3_error!(AccessDenied, "sign the request with an access key of the tenants file"));
        };
        self.state.journal().note_request();
        let quota = authenticator.quota(&principal.tenant);
        let permit = self.state.quota_limiter().admit(&principal.tenant, &quota).map_err(|exceeded| {
            self.state.metrics().throttled(exceeded.limit);
            s3_error!(SlowDown, "the tenant's limit of {} is reached", exceeded.limit)
        })?;
        let Some(&(name, label, required)) = known else {
            let name = request.s3_op().name();
            return Err(s3_error!(NotImplemented, "{name} is not implemented here"));
        };
        // Within the quota: each refusal is a line of the audit log.
        if principal.role < required {
            self.state.metrics().auth_refused("role");
            let refused = match request.s3_path() {
                S3Path::Object { bucket, key } => AuditedRequest::of_s3(request.method(), bucket, key),
                _ => AuditedRequest::of(request.method(), request.uri().path()),
            };
            OpenAudit::new(&self.state, &principal, Some(refused)).end(403);
            let (needed, held) = (required.as_str(), principal.role.as_str());
            return Err(s3_error!(AccessDenied, "{name} needs the role {needed}; the access key has {held}"));
        }
        let access_key = request.credentials().map(|signed| SigningKey {
            id: signed.access_key.clone(),
            secret: signed.secret_key.expose().to_owned().into(),
            principal: principal.clone(),
        });
        let extensions = request.extensions_mut();
        if let Some(CallRecord(call)) = extensions.get() {
            let tenant = Some(principal.tenant.clone());
            *call.lock() = Call { operation: Some(label), tenant, permit, access_key, is_checked: true };
        }
        extensions.insert(principal);
        Ok(())
    }
}
