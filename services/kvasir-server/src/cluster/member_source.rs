//! Where the list of members comes from.

use std::collections::BTreeSet;

use hickory_resolver::{
    TokioResolver,
    proto::rr::{RData, Record},
};
use kvasir_api::Member;
use url::Url;

use crate::limits;

/// Where the list of members comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum MemberSource {
    /// The configuration.
    Fixed(Vec<Member>),
    /// SRV records of a name, which DNS is asked for again and again.
    Srv {
        /// The name.
        name: String,
    },
}

impl MemberSource {
    /// Reads `dns+srv://name`, or URLs with commas between, each with `?zone=…&weight=…` where that is known.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("dns+srv://") {
            let is_name = !name.is_empty()
                && name.len() <= 253
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            let problem =
                || format!("{text:?} names no SRV records; use dns+srv://_api._tcp.kvasir-headless");
            return is_name.then(|| Self::Srv { name: name.to_owned() }).ok_or_else(problem);
        }
        let members: Vec<Member> =
            text.split(',').map(|member| parse_member(member.trim())).collect::<Result<_, _>>()?;
        let urls: BTreeSet<&str> = members.iter().map(|member| member.url.as_str()).collect();
        if urls.len() < members.len() {
            return Err("has a member twice".to_owned());
        }
        if members.len() > limits::MEMBERS_MAX {
            return Err(format!("has more than {} members", limits::MEMBERS_MAX));
        }
        Ok(Self::Fixed(members))
    }

    /// The same as text.
    pub fn text(&self) -> String {
        match self {
            Self::Srv { name } => format!("dns+srv://{name}"),
            Self::Fixed(members) => members.iter().map(member_text).collect::<Vec<_>>().join(","),
        }
    }
}

/// Asks DNS for the SRV records of a name. Members' URLs begin with `scheme`.
pub(super) async fn resolve(
    name: &str,
    resolver: &TokioResolver,
    scheme: &str,
) -> Result<Vec<Member>, String> {
    let answer = tokio::time::timeout(limits::MEMBERS_RESOLVE_TIME_MAX, resolver.srv_lookup(name)).await;
    let answer = answer.map_err(|_| "DNS does not answer".to_owned())?.map_err(|e| e.to_string())?;
    let member = |record: &Record| {
        let RData::SRV(srv) = &record.data else { return None };
        let host = srv.target.to_utf8();
        let url = format!("{scheme}://{}:{}", host.trim_end_matches('.'), srv.port);
        // A weight of zero is what those have that no weight was given.
        Some(Member { url, zone: None, weight: f64::from(srv.weight.max(1)) })
    };
    let members: Vec<Member> = answer.answers().iter().filter_map(member).collect();
    if members.is_empty() { Err("the name has no SRV records".to_owned()) } else { Ok(members) }
}

/// A member's URL in the form in which it is compared: scheme, host and port. What is wrong is said without a URL that may hold
/// a password.
pub(crate) fn canonical_url(text: &str) -> Result<String, String> {
    let form = "use http://host:port or https://host:port";
    if text.contains('@') {
        return Err(format!("has a URL with a user or a password; {form}"));
    }
    let url = Url::parse(text).map_err(|error| format!("{text:?} is no URL: {error}; {form}"))?;
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    match (url.host_str(), url.port_or_known_default()) {
        (Some(host), Some(port)) if is_bare && matches!(url.scheme(), "http" | "https") => {
            Ok(format!("{}://{host}:{port}", url.scheme()))
        }
        _ => Err(format!("{text:?} is no address of a replica; {form}")),
    }
}

fn parse_member(text: &str) -> Result<Member, String> {
    let (url, options) = text.split_once('?').unwrap_or((text, ""));
    let mut member = Member { url: canonical_url(url)?, zone: None, weight: 1.0 };
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("zone", zone)) => {
                member.zone = Some(zone.parse().map_err(|error| format!("zone of {url}: {error}"))?);
            }
            Some(("weight", weight)) => {
                let weight = weight.parse().ok().filter(|weight: &f64| (0.01..=100.0).contains(weight));
                member.weight = weight.ok_or_else(|| format!("weight of {url}: must be 0.01 to 100"))?;
            }
            _ => return Err(format!("{option:?} of {url} is not known; use zone=… and weight=…")),
        }
    }
    Ok(member)
}

fn member_text(Member { url, zone, weight }: &Member) -> String {
    let zone = zone.as_ref().map(|zone| format!("zone={zone}"));
    let weight = (*weight != 1.0).then(|| format!("weight={weight}"));
    let options: Vec<String> = [zone, weight].into_iter().flatten().collect();
    if options.is_empty() { url.clone() } else { format!("{url}?{}", options.join("&")) }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::Arc, time::Duration};

    use hickory_resolver::{
        Resolver,
        config::{ConnectionConfig, NameServerConfig, ResolverConfig},
        net::runtime::TokioRuntimeProvider,
        proto::{
            op::{Message, MessageType},
            rr::{Name, rdata::SRV},
        },
    };
    use parking_lot::Mutex;
    use tokio::net::UdpSocket;

    use super::*;
    use crate::cluster::{Cluster, ClusterConfig};

    #[test]
    fn lists_are_read_as_they_are_written_or_refused() {
        for text in [
            "dns+srv://_api._tcp.kvasir-headless.default.svc.cluster.local",
            "http://a:7480",
            "http://a:7480,http://b:7480?zone=eu-1a&weight=2",
            "https://[::1]:7480?weight=0.5",
        ] {
            let source = MemberSource::parse(text).expect(text);
            assert_eq!(source.text(), text);
            assert_eq!(MemberSource::parse(&source.text()), Ok(source));
        }
        // A port that goes without saying is said.
        assert_eq!(canonical_url("http://A/"), Ok("http://a:80".to_owned()));
        for text in [
            "",
            "a:7480",
            "ftp://a",
            "http://a,,http://b",
            "http://a,http://a:80",
            "http://user:secret@a",
            "http://a/path",
            "http://a?weight=0",
            "http://a?weight=NaN",
            "http://a?zone=",
            "http://a?rank=1",
            "dns+srv://",
            "dns+srv://a b",
        ] {
            let problem = MemberSource::parse(text).expect_err(text);
            assert!(!problem.contains("secret"), "{problem}");
        }
        let many: Vec<String> = (0..=limits::MEMBERS_MAX).map(|n| format!("http://a{n}")).collect();
        assert!(MemberSource::parse(&many.join(",")).is_err());
    }

    /// Answers SRV questions with the targets of now: with none, that there is no such name; with an empty one, nothing.
    async fn dns(targets: Arc<Mutex<Vec<(&'static str, u16)>>>) -> TokioResolver {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = socket.local_addr().expect("bound").port();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                if targets.lock().iter().any(|(target, _)| target.is_empty()) {
                    continue;
                }
                let mut answer = Message::from_vec(&buffer[..length]).expect("a question");
                answer.metadata.message_type = MessageType::Response;
                let name = answer.queries[0].name().clone();
                for (target, weight) in targets.lock().iter() {
                    let target = Name::from_ascii(target).expect("a name");
                    let srv = RData::SRV(SRV::new(0, *weight, 7480, target));
                    answer.add_answer(Record::from_rdata(name.clone(), 0, srv));
                }
                let answer = answer.to_vec().expect("bytes");
                socket.send_to(&answer, peer).await.expect("is sent");
            }
        });
        let mut connection = ConnectionConfig::udp();
        connection.port = port;
        let server = NameServerConfig::new(Ipv4Addr::LOCALHOST.into(), true, vec![connection]);
        let config = ResolverConfig::from_name_servers(vec![server]);
        let mut builder = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
        builder.options_mut().timeout = Duration::from_secs(1);
        builder.build().expect("a resolver")
    }

    #[tokio::test]
    async fn members_come_and_go_with_dns_and_stay_where_it_does_not_answer() {
        let targets = Arc::new(Mutex::new(vec![("kvasir-1.headless.", 0), ("kvasir-0.headless.", 3)]));
        let resolver = dns(Arc::clone(&targets)).await;
        let members = Some(MemberSource::parse("dns+srv://_api._tcp.headless.").expect("a name"));
        let config =
            ClusterConfig { members, advertise: Some("https://kvasir-0:7480".to_owned()), zone: None };
        let cluster = Cluster::new(config, true);
        assert_eq!((cluster.len(), cluster.epoch()), (0, None));
        cluster.resolve(&resolver).await.expect("an answer");
        let first = cluster.epoch();
        let list = cluster.describe(&"t".parse().expect("a name"));
        assert_eq!(list.this.as_deref(), Some("https://kvasir-0.headless:7480"));
        let found: Vec<_> = list.members.iter().map(|member| (member.url.as_str(), member.weight)).collect();
        assert_eq!(found, [("https://kvasir-0.headless:7480", 3.0), ("https://kvasir-1.headless:7480", 1.0)]);
        targets.lock().push(("kvasir-2.headless.", 0));
        cluster.resolve(&resolver).await.expect("an answer");
        assert_eq!(cluster.len(), 3);
        assert_ne!(cluster.epoch(), first);
        targets.lock().clear();
        cluster.resolve(&resolver).await.expect_err("nobody");
        assert_eq!(cluster.len(), 3, "the former list stays");
        targets.lock().push(("", 0));
        cluster.resolve(&resolver).await.expect_err("no answer");
        assert_eq!(cluster.len(), 3, "the former list stays");
        *targets.lock() = vec![("kvasir-1.headless.", 0)];
        cluster.resolve(&resolver).await.expect("an answer");
        assert_eq!(cluster.len(), 1);
        // One of weight 1 joined weights of 4, then two of 4 in 5 left; the first list moved nothing.
        assert!((cluster.routes_moved() - (0.2 + 0.8)).abs() < 1e-9, "{}", cluster.routes_moved());
    }
}
