//! Who may call what: the role that each route asks for.

use serde::{Deserialize, Serialize};

use crate::routes;

/// What a credential allows, each role all of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look up and read.
    Read,
    /// Store and remove chunks, profiles and contexts.
    Write,
    /// Also what concerns the tenant as a whole: rotate the salts of its namespaces, sample what it has stored.
    Admin,
    /// Also what concerns every tenant: jobs on the whole store. Sees no other tenant's data.
    Operator,
}

impl Role {
    /// All roles, weakest first.
    pub const ALL: &[Self] = &[Self::Read, Self::Write, Self::Admin, Self::Operator];

    /// As in token files, claims and documents.
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
        found.copied().ok_or_else(|| format!("{text:?} is no role: read, write, admin or operator"))
    }
}

/// The role that `method` on the route template `route` asks for; none where anybody may call.
///
/// A route that nobody thought of asks for the strongest one.
pub fn required_role(method: &str, route: &str) -> Option<Role> {
    // Probes and metrics are for the orchestrator, which has no credential; the network policy keeps others away.
    // The document and the console's files say nothing of anybody's data.
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
        // Answers a question, and a namespace comes into being by being asked for.
        routes::LOOKUP
        | routes::NAMESPACES
        | routes::OBJECTS_LOOKUP
        | routes::OBJECTS_READ
        | routes::OBJECTS_EXPLAIN => Role::Read,
        routes::MODEL
        | routes::PROFILES
        | routes::PROFILE
        | routes::PROFILE_LEVELS
        | routes::CHUNK
        | routes::CHUNK_OBJECT
        | routes::OBJECT
            if reads =>
        {
            Role::Read
        }
        routes::CHUNK_OBJECT_URL
        | routes::EVENTS
        | routes::EXPLAIN
        | routes::PLAN
        | routes::USAGE
        | routes::LOADS => Role::Read,
        routes::CONTEXTS | routes::CONTEXT | routes::CONTEXT_VERSIONS if reads => Role::Read,
        routes::CONTEXTS | routes::CONTEXT | routes::UPLOADS | routes::UPLOAD_COMMIT => Role::Write,
        // Registering is idempotent and names nothing that was not given.
        routes::MODELS => Role::Read,
        routes::PROFILE | routes::CHUNK | routes::CHUNK_OBJECT | routes::OBJECT | routes::OBJECTS_WRITE => {
            Role::Write
        }
        // A sample is of all namespaces, and readers of one are not told of the others.
        routes::NAMESPACE_ROTATION | routes::SAMPLE | routes::AUDIT => Role::Admin,
        // Jobs work on what is everybody's, series are of everybody; and what nobody thought of is nobody else's.
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
