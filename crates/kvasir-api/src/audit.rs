//! Who changed what.

use kvasir_types::Name;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::Role;

/// Most calls that a replica remembers, and of an answer.
pub const AUDIT_CALLS_MAX: usize = 1_000;

/// Query of the audited calls.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Only calls of this tenant; another one than the caller's needs the role `operator`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub tenant: Option<Name>,
    /// Most calls of the answer; 100 unless told, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A call that changed something, or would have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditedCall {
    /// When it was answered, in milliseconds since 1970.
    pub at_ms: u64,
    /// Whose credential it had.
    pub tenant: Name,
    /// Which one: the token's name, or the claim `sub`.
    pub credential: String,
    /// What that allows.
    #[schema(value_type = String)]
    pub role: Role,
    /// The method.
    pub method: String,
    /// The path.
    pub path: String,
    /// Status of the answer; 403: its role did not suffice.
    pub status: u16,
}

/// The last audited calls to this replica, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    /// The calls.
    pub calls: Vec<AuditedCall>,
}
