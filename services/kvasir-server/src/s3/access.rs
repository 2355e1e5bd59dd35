//! Who may call the S3 front: access keys of the tenants file, their roles, their quotas.

use std::sync::Arc;

use kvasir_api::Role;
use kvasir_types::Name;
use parking_lot::Mutex;
use s3s::{
    S3Result,
    access::{S3Access, S3AccessContext},
    auth::{S3Auth, SecretKey},
    s3_error,
};

use crate::{quota::RequestPermit, state::AppState};

/// Operations that are answered, each with its label and the role that it needs. All others are not implemented.
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

/// What the check of a request found out, for the layers around it.
#[derive(Debug, Clone, Default)]
pub(super) struct CallRecord(Arc<Mutex<Call>>);

#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) operation: Option<&'static str>,
    pub(super) tenant: Option<Name>,
    pub(super) permit: Option<RequestPermit>,
}

impl CallRecord {
    pub(super) fn take(&self) -> Call {
        std::mem::take(&mut self.0.lock())
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
            None => {
                self.state.metrics().auth_refused("invalid");
                Err(s3_error!(InvalidAccessKeyId, "the access key is not known here or not valid now"))
            }
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
        let known = OPERATIONS.iter().find(|(name, ..)| *name == request.s3_op().name());
        let authenticator = self.state.authenticator();
        let principal = match request.credentials() {
            Some(signed) => authenticator.access_key(&signed.access_key).map(|(principal, _)| principal),
            None => authenticator.anonymous(),
        };
        let Some(principal) = principal else {
            self.state.metrics().auth_refused("missing");
            return Err(s3_error!(AccessDenied, "sign the request with an access key of the tenants file"));
        };
        let Some(&(name, label, required)) = known else {
            let name = request.s3_op().name();
            return Err(s3_error!(NotImplemented, "{name} is not implemented here"));
        };
        if principal.role < required {
            self.state.metrics().auth_refused("role");
            let (needed, held) = (required.as_str(), principal.role.as_str());
            return Err(s3_error!(AccessDenied, "{name} needs the role {needed}, the access key has {held}"));
        }
        self.state.journal().note_request();
        let quota = authenticator.quota(&principal.tenant);
        let permit = self.state.quota_limiter().admit(&principal.tenant, &quota).map_err(|exceeded| {
            self.state.metrics().throttled(exceeded.limit);
            s3_error!(SlowDown, "the tenant's limit of {} is reached", exceeded.limit)
        })?;
        let extensions = request.extensions_mut();
        if let Some(CallRecord(call)) = extensions.get() {
            *call.lock() = Call { operation: Some(label), tenant: Some(principal.tenant.clone()), permit };
        }
        extensions.insert(principal);
        Ok(())
    }
}
