//! Routes: which replica keeps a context hot.
//!
//! A prompt has one route, so that one replica answers its lookup and serves its chunks. The route is the shortest prefix of a
//! multiple of [`ROUTE_TOKENS`] tokens that is not *split*. Prompts that share more than that share the route, and a
//! conversation keeps its route while it grows. A prefix that too many prompts share (a system prompt, one document) is split:
//! prompts then route by the next multiple, and all replicas serve the shared prefix.

use std::{cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{BLOCK_TOKENS, ModelId, Name, ObjectKey, SeqHash};

/// Tokens by which routes grow: the smallest step of a chunk.
pub const ROUTE_TOKENS: usize = 256;

/// A route: the first 16 hex digits of the `seq_hash` of the block at which it is decided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey(u64);

/// A string that is not 16 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a route is 16 hex digits")]
pub struct ParseRouteKeyError;

impl RouteKey {
    /// The route of what is counted for all tenants.
    pub const ACCOUNTS: Self = Self(0);

    /// The route of a work unit: the chunks of a tenant's model whose `seq_hash` begins with the hex digit `digit`.
    pub fn of_work_unit(tenant: &Name, model_id: &ModelId, digit: u8, turn: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(model_id.as_bytes()).update(&[digit]).update(&turn.to_le_bytes());
        hasher.update(tenant.as_str().as_bytes());
        Self::start_of(hasher.finalize().as_bytes())
    }

    /// The route of an opaque object.
    pub fn of_object(namespace: &Name, key: &ObjectKey) -> Self {
        let mut hasher = blake3::Hasher::new();
        // A name has no zero byte.
        hasher.update(namespace.as_str().as_bytes()).update(&[0]).update(key.as_str().as_bytes());
        Self::start_of(hasher.finalize().as_bytes())
    }

    /// The route of a prompt with these block hashes, or `None` for an empty one.
    ///
    /// Where the prompt ends before a prefix that is not split, its last block decides: such prompts spread over all replicas.
    pub fn of(blocks: &[SeqHash], is_split: impl Fn(&Self) -> bool) -> Option<Self> {
        Self::all(blocks).find(|key| !is_split(key)).or_else(|| blocks.last().map(Self::at))
    }

    /// The routes of a prompt at whole multiples of [`ROUTE_TOKENS`] tokens, shortest first.
    fn all(blocks: &[SeqHash]) -> impl Iterator<Item = Self> {
        let step = ROUTE_TOKENS / BLOCK_TOKENS;
        blocks.iter().skip(step - 1).step_by(step).map(Self::at)
    }

    /// Those that are longer than this one; none if this is not one of them.
    pub fn longer(self, blocks: &[SeqHash]) -> impl Iterator<Item = Self> {
        Self::all(blocks).skip_while(move |key| *key != self).skip(1)
    }

    fn at(block: &SeqHash) -> Self {
        Self::start_of(block.as_bytes())
    }

    fn start_of(hash: &[u8; 32]) -> Self {
        let [first, ..] = hash.as_chunks().0 else { unreachable!("a hash has 32 bytes") };
        Self(u64::from_be_bytes(*first))
    }

    /// The members that keep this route, best first, as indices into `members`: weighted rendezvous hashing.
    ///
    /// A member that joins takes over its share of the routes, one that leaves gives up its own, and no other route moves.
    /// `members` are identities with weights above 0; a member of weight 2 gets twice the routes of one of weight 1.
    ///
    /// Sources: D. Thaler and C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM ToN 6(1), 1998; the
    /// weights as in J. Resch, "New Hashing Algorithms for Data Storage", SNIA SDC 2015.
    pub fn rank<'a>(&self, members: impl IntoIterator<Item = (&'a str, f64)>) -> Vec<usize> {
        let score = |(identity, weight): (&str, f64)| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&self.0.to_be_bytes()).update(identity.as_bytes());
            let hash = hasher.finalize();
            let [bits, ..] = hash.as_bytes().as_chunks().0 else { unreachable!("a hash has 32 bytes") };
            // In (0, 1): 53 bits and a half.
            let uniform = ((u64::from_be_bytes(*bits) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            -weight / uniform.ln()
        };
        let mut ranked: Vec<(usize, f64)> = members.into_iter().map(score).enumerate().collect();
        ranked.sort_by(|(_, a), (_, b)| b.partial_cmp(a).unwrap_or(Ordering::Equal));
        ranked.into_iter().map(|(index, _)| index).collect()
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RouteKey({self})")
    }
}

impl FromStr for RouteKey {
    type Err = ParseRouteKeyError;

    fn from_str(text: &str) -> Result<Self, ParseRouteKeyError> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        value.map(Self).ok_or(ParseRouteKeyError)
    }
}

impl Serialize for RouteKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RouteKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for RouteKey {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        crate::schema::text("16 hex digits: a route.", "^[0-9a-fA-F]{16}$")
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for RouteKey {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{RootHash, TokenChain};

    fn blocks(tokens: &[u32]) -> Vec<SeqHash> {
        TokenChain::new(RootHash::from([7; 32]), tokens).blocks().to_vec()
    }

    fn keys(count: u64) -> impl Iterator<Item = RouteKey> {
        (0..count).map(|n| {
            let hash = blake3::hash(&n.to_le_bytes());
            let [bits, ..] = hash.as_bytes().as_chunks().0 else { unreachable!("a hash has 32 bytes") };
            RouteKey(u64::from_be_bytes(*bits))
        })
    }

    const REPLICAS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

    #[test]
    fn a_conversation_keeps_its_route_while_it_grows_and_a_split_prefix_gives_way() {
        let tokens: Vec<u32> = (0..2048).collect();
        let route = |length: usize, split: &[RouteKey]| {
            RouteKey::of(&blocks(&tokens[..length]), |key| split.contains(key)).expect("not empty")
        };
        let first = route(256, &[]);
        assert!([300, 1000, 2048].iter().all(|&length| route(length, &[]) == first));
        assert_ne!(route(255, &[]), first, "a shorter prompt is decided by its last block");
        let second = route(512, &[first]);
        assert_ne!(second, first);
        assert_eq!(route(2048, &[first]), second);
        assert_eq!(route(400, &[first]), RouteKey::at(&blocks(&tokens[..400])[24]));
        let longer =
            |key: RouteKey, length: usize| key.longer(&blocks(&tokens[..length])).collect::<Vec<_>>();
        assert_eq!((longer(first, 2048).len(), longer(first, 2048)[0]), (7, second));
        assert_eq!((longer(first, 480), longer(route(255, &[]), 255)), (vec![], vec![]));
        assert_eq!(RouteKey::of(&[], |_| false), None);
        let text = first.to_string();
        assert!(blocks(&tokens)[15].to_string().starts_with(&text));
        assert_eq!(text.parse(), Ok(first));
        assert!(
            ["", "00", "+000000000000000", "00000000000000000"]
                .iter()
                .all(|t| t.parse::<RouteKey>().is_err())
        );
    }

    /// Other languages compute the same ranks: these are written down.
    #[test]
    fn ranks_are_as_they_were() {
        let key: RouteKey = "00112233445566ff".parse().expect("16 digits");
        let members =
            [("http://a:7480", 1.0), ("http://b:7480", 1.0), ("http://c:7480", 1.0), ("http://d:7480", 1.0)];
        assert_eq!(key.rank(members), GOLDEN);
    }

    const GOLDEN: [usize; 4] = [2, 0, 3, 1];

    #[test]
    fn routes_are_shared_out_by_weight() {
        let mut counts = [0u32; 4];
        let weights = [1.0, 1.0, 2.0, 4.0];
        for key in keys(80_000) {
            counts[key.rank(REPLICAS.into_iter().zip(weights))[0]] += 1;
        }
        for (count, weight) in counts.into_iter().zip(weights) {
            let share = f64::from(count) / 80_000.0;
            // Five standard deviations of the largest share are 0.009.
            assert!((share - weight / 8.0).abs() < 0.009, "{share} of weight {weight}");
        }
    }

    proptest! {
        /// Whoever leaves gives up its routes and no others move; the next in rank takes each over.
        #[test]
        fn only_the_routes_of_a_member_that_leaves_move(value: u64, gone in 0usize..8) {
            let all = REPLICAS.map(|name| (name, 1.0));
            let rest: Vec<_> = all.into_iter().enumerate().filter(|(i, _)| *i != gone).map(|(_, m)| m).collect();
            let before: Vec<&str> = RouteKey(value).rank(all).into_iter().map(|i| all[i].0).collect();
            let after: Vec<&str> = RouteKey(value).rank(rest.clone()).into_iter().map(|i| rest[i].0).collect();
            let kept: Vec<&str> = before.into_iter().filter(|name| *name != all[gone].0).collect();
            prop_assert_eq!(kept, after);
        }
    }
}
