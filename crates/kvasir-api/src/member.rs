//! The members of a cluster of replicas, and which of them a request should go to.

use kvasir_types::{Name, RouteKey};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Replicas that keep a route hot: its first, and the one that takes over where the first is late or away.
pub const ROUTE_REPLICAS: usize = 2;

/// The replicas that share a bucket, as the replica that answers knows them.
///
/// Replicas and clients may have different lists for a while: every replica answers every request correctly, only colder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MembersResponse {
    /// Names this list: equal lists have equal epochs. Also in the header `kvasir-members` of every answer to a routed request.
    pub epoch: String,
    /// The members, in the order of their URLs. Empty where the service was not told of any: then requests have no route.
    pub members: Vec<Member>,
    /// The URL of the replica that answers, where it knows its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub this: Option<String>,
    /// Routes of the caller's tenant that this replica has split: prompts that share them go by their next 256 tokens.
    pub splits: Vec<RouteKey>,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Where clients reach it; also its identity for routes.
    pub url: String,
    /// The zone that it runs in, where the list says so. Where it does not, each replica says its own (`kvasir-zone` of `/readyz`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Name>,
    /// Its share of the routes, against the other members' weights; above 0.
    pub weight: f64,
}

impl MembersResponse {
    /// Indices of the members that keep a route, best first, all of them.
    pub fn rank(&self, route: &RouteKey) -> Vec<usize> {
        route.rank(self.members.iter().map(|member| (member.url.as_str(), member.weight)))
    }

    /// The epoch of a list: equal lists have equal ones, whatever order they were given in.
    pub fn epoch_of(members: &[Member]) -> String {
        let mut lines: Vec<String> = members
            .iter()
            .map(|Member { url, zone, weight }| {
                format!("{url} {} {weight}", zone.as_ref().map_or("", Name::as_str))
            })
            .collect();
        lines.sort_unstable();
        let digest = kvasir_types::ObjectDigest::of(lines.join("\n").as_bytes()).to_string();
        digest.chars().take(16).collect()
    }
}
