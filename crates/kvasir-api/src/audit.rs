//! The audit log.

use kvasir_types::Name;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::Role;

/// Most calls that a replica keeps, and that a response contains.
pub const AUDIT_CALLS_MAX: usize = 1_000;

/// Query of the audited calls.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Only calls of this tenant; a tenant other than the caller's requires the role `operator`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub tenant: Option<Name>,
    /// Maximum number of calls in the response; default 100, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A call that changed something, or was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditedCall {
    /// Time of the response, in milliseconds since 1970.
    pub at_ms: u64,
    /// Tenant of the credential.
    pub tenant: Name,
    /// Name of the credential: the token's name, or the claim `sub`.
    pub credential: String,
    /// Its role.
    #[schema(value_type = String)]
    pub role: Role,
    /// The method.
    pub method: String,
    /// The path.
    pub path: String,
    /// HTTP status of the response; 403: the role was insufficient.
    pub status: u16,
}

/// The latest audited calls to this replica, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    /// The calls.
    pub calls: Vec<AuditedCall>,
}
