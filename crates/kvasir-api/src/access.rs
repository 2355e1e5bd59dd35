//! Access control: the role that each route requires.

use serde::{Deserialize, Serialize};

use crate::routes;

/// The permissions of a credential. Each role includes the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look up and read.
    Read,
    /// Store and remove chunks, profiles and contexts.
    Write,
    /// Also manage the tenant as a whole: rotate the salts of its namespaces, sample its stored chunks.
    Admin,
    /// Also manage the whole service: jobs on the whole store. Does not see other tenants' data.
    Operator,
}

impl Role {
    /// All roles, weakest first.
    pub const ALL: &[Self] = &[Self::Read, Self::Write, Self::Admin, Self::Operator];

    /// The name in token files, claims and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
            Self::Operator => "operator",
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|role| role.as_str() == text);
        found.copied().ok_or_else(|| format!("{text:?} is not a role: use read, write, admin or operator"))
    }
}

/// The role that `method` on the route template `route` requires; `None` if no credential is needed.
///
/// A route without a rule requires the strongest role.
pub fn required_role(method: &str, route: &str) -> Option<Role> {
    // Probes and metrics are for the orchestrator, which has no credential; a network policy keeps others
    // away. The OpenAPI document and the console's files contain no tenant data.
    if [routes::LIVEZ, routes::READYZ, routes::METRICS, routes::OPENAPI].contains(&route)
        || route == routes::DOCS
        || route.starts_with(routes::DOCS_ASSETS)
        || route == routes::CONSOLE
        || route.starts_with(routes::CONSOLE_FILES)
    {
        return None;
    }
    let reads = matches!(method, "GET" | "HEAD");
    let role = match route {
        routes::CONFIG | routes::MEMBERS => Role::Read,
        // A query; the first request for a namespace creates it.
        routes::LOOKUP
        | routes::NAMESPACES
        | routes::OBJECTS_LOOKUP
        | routes::OBJECTS_READ
        | routes::OBJECTS_EXPLAIN => Role::Read,
        routes::MODEL
        | routes::PROFILES
        | routes::PROFILE
        | routes::PROFILE_LEVELS
        | routes::TRAININGS
        | routes::CHUNK
        | routes::CHUNK_OBJECT
        | routes::OBJECT
            if reads =>
        {
            Role::Read
        }
        routes::CHUNK_OBJECT_URL
        | routes::CHUNK_OBJECT_STATUS
        | routes::EVENTS
        | routes::EXPLAIN
        | routes::PLAN
        | routes::USAGE
        | routes::LOADS => Role::Read,
        routes::CONTEXTS | routes::CONTEXT | routes::CONTEXT_VERSIONS if reads => Role::Read,
        routes::CONTEXTS | routes::CONTEXT | routes::UPLOADS | routes::UPLOAD_COMMIT => Role::Write,
        // Registering is idempotent and adds nothing beyond its input.
        routes::MODELS => Role::Read,
        routes::PROFILE | routes::CHUNK | routes::CHUNK_OBJECT | routes::OBJECT | routes::OBJECTS_WRITE => {
            Role::Write
        }
        // A sample covers all namespaces, which readers of one must not learn of. Who may not have it trains nothing.
        routes::NAMESPACE_ROTATION | routes::SAMPLE | routes::TRAININGS | routes::AUDIT => Role::Admin,
        // Jobs and series concern all tenants; routes without a rule get the strongest role.
        _ => Role::Operator,
    };
    Some(role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_ordered_and_parse() {
        assert!(Role::ALL.is_sorted());
        assert!(Role::ALL.iter().all(|role| role.as_str().parse() == Ok(*role)));
        assert!("root".parse::<Role>().is_err());
    }

    #[test]
    fn an_unknown_route_is_for_operators() {
        assert_eq!(required_role("GET", "/v1/new"), Some(Role::Operator));
        assert_eq!(required_role("PUT", routes::CHUNK), Some(Role::Write));
        assert_eq!(required_role("GET", routes::CHUNK), Some(Role::Read));
        assert_eq!(required_role("GET", routes::LIVEZ), None);
    }
}
