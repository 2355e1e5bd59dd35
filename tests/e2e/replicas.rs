//! Several replicas over one bucket that know each other, and clients that know them.

use std::net::SocketAddr;

use kvasir_api::{LookupQuery, LookupResponse, Via};
use kvasir_client::rest::{Client, ClientConfig, ObjectRange};
use kvasir_server::MemberSource;
use kvasir_store::StoreConfig;
use kvasir_tests::{chunks, service::Service};
use kvasir_types::{Medium, ModelId, RootHash, TokenChain};
use tempfile::TempDir;
use tokio::net::TcpSocket;

pub(crate) const TOKENS: usize = 512;
/// Prompts of a test: by chance, one of three replicas is the second of none of them once in four million runs.
pub(crate) const PROMPTS: u64 = 40;
/// Requests that a client may send to the second replica because the first is slow, as on a busy machine: three at once and a
/// twentieth of all.
pub(crate) const HEDGES_MAX: usize = 6;

/// Replicas over one directory that know each other.
pub(crate) struct Replicas {
    pub(crate) services: Vec<Option<Service>>,
    pub(crate) urls: Vec<String>,
    pub(crate) directory: TempDir,
    pub(crate) model_id: ModelId,
    pub(crate) root: RootHash,
    _ports: Vec<TcpSocket>,
}

/// Ports that a list of members names before replicas listen at them. While these live no other test gets one: nobody listens at
/// them, and a replica may.
pub(crate) fn ports(count: usize) -> (Vec<TcpSocket>, Vec<SocketAddr>) {
    let reserve = |_| {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("is set");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        socket
    };
    let sockets: Vec<_> = (0..count).map(reserve).collect();
    let addresses = sockets.iter().map(|socket| socket.local_addr().expect("bound")).collect();
    (sockets, addresses)
}

impl Replicas {
    pub(crate) async fn start(count: usize) -> Self {
        Self::start_among(count, &[]).await
    }

    /// Replicas whose list names others as well.
    pub(crate) async fn start_among(count: usize, others: &[SocketAddr]) -> Self {
        let directory = TempDir::new().expect("a directory");
        let (ports, addresses) = ports(count);
        let addresses = [&addresses, others].concat();
        let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
        let mut services = Vec::new();
        for nth in 0..count {
            services.push(Some(Self::start_one(&directory, &urls, nth).await));
        }
        let (model_id, root) = services[0].as_ref().expect("runs").prepare("n").await;
        Self { services, urls, directory, model_id, root, _ports: ports }
    }

    /// Starts a replica, with what it has on disk.
    pub(crate) async fn start_one(directory: &TempDir, urls: &[String], nth: usize) -> Service {
        let url = format!("file://{}/store", directory.path().display()).parse().expect("a URL");
        let cache = directory.path().join(nth.to_string());
        Service::start_with(StoreConfig::new(url), &cache, |config| {
            config.server.listen =
                urls[nth].strip_prefix("http://").expect("a URL").parse().expect("an address");
            config.cluster.members = Some(MemberSource::parse(&urls.join(",")).expect("a list"));
            config.cluster.advertise = Some(urls[nth].clone());
            config.cluster.zone = Some(format!("z{nth}").parse().expect("a name"));
            config.gc.interval = std::time::Duration::ZERO;
        })
        .await
    }

    pub(crate) fn service(&self, nth: usize) -> &Service {
        self.services[nth].as_ref().expect("runs")
    }

    /// A client that was given the address of one replica and sends requests to each that runs. Before the first probe is answered,
    /// which may take long on a busy machine, it does not.
    pub(crate) async fn client(&self, nth: usize) -> Client {
        self.client_with(nth, ClientConfig::default()).await
    }

    pub(crate) async fn client_with(&self, nth: usize, config: ClientConfig) -> Client {
        let url = self.urls[nth].parse().expect("a URL");
        let client = Client::new(url, config).expect("a client");
        client.learn_members().await;
        for seed in (1 << 32..).step_by(64) {
            let before = self.kept().await;
            for seed in seed..seed + 64 {
                self.lookup(&client, seed).await;
            }
            if self.kept().await.iter().zip(before).all(|(now, before)| *now > before) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        client
    }

    /// Requests that each replica which runs answered as one of the two that keep their prompt.
    pub(crate) async fn kept(&self) -> Vec<u64> {
        let mut kept = Vec::new();
        for nth in (0..self.services.len()).filter(|nth| self.services[*nth].is_some()) {
            kept.push(self.routed(nth, "first").await + self.routed(nth, "second").await);
        }
        kept
    }

    pub(crate) fn chain(&self, seed: u64) -> TokenChain {
        TokenChain::new(self.root, &chunks::tokens(seed, TOKENS))
    }

    pub(crate) async fn lookup(&self, client: &Client, seed: u64) -> LookupResponse {
        let chain = self.chain(seed);
        let target = LookupQuery {
            model_id: self.model_id,
            namespace: "n".parse().expect("a name"),
            fresh: false,
            direct: false,
        };
        client.for_prompt(chain.blocks()).lookup_blocks(&target, chain.blocks()).await.expect("an answer")
    }

    /// Looks a prompt up and reads it. Returns whether it was in memory.
    pub(crate) async fn load(&self, client: &Client, seed: u64) -> bool {
        let found = self.lookup(client, seed).await;
        assert_eq!(found.matched_tokens, TOKENS as u64);
        let client = client.for_prompt(self.chain(seed).blocks());
        for chunk in &found.chunks {
            let range = ObjectRange {
                model_id: self.model_id,
                seq_hash: chunk.seq_hash,
                object_digest: chunk.object_digest,
                start: 0,
                end: chunk.bytes,
            };
            let mut left = chunk.bytes;
            let mut read = client.get_object(&range, &Via::Proxy).await.expect("a read");
            while let Some(part) = read.next().await.expect("bytes") {
                left -= part.len() as u64;
            }
            assert_eq!(left, 0);
        }
        found.chunks.iter().all(|chunk| chunk.medium == Medium::Cpu)
    }

    /// How many of the prompts are read from memory.
    pub(crate) async fn load_all(&self, client: &Client) -> usize {
        let mut hot = 0;
        for seed in 0..PROMPTS {
            hot += usize::from(self.load(client, seed).await);
        }
        hot
    }

    pub(crate) async fn store(&self, client: &Client, seed: u64) {
        let chunk = chunks::chunk(self.root, &chunks::tokens(seed, TOKENS), 0, TOKENS, 5_000);
        let client = client.for_prompt(self.chain(seed).blocks());
        client.put_chunk(&self.model_id, &chunk.seq_hash, chunk.bytes.into()).await.expect("is stored");
    }

    /// Routed requests that a replica answered at a place.
    pub(crate) async fn routed(&self, nth: usize, place: &str) -> u64 {
        let text = self.service(nth).metrics().await;
        let line = format!("kvasir_route_requests_total{{place=\"{place}\"}} ");
        text.lines().find_map(|found| found.strip_prefix(&line)?.parse().ok()).expect("there from the start")
    }

    /// Bytes of frames in a replica's memory.
    pub(crate) async fn hot_bytes(&self, nth: usize) -> u64 {
        let text = self.service(nth).metrics().await;
        let lines =
            text.lines().filter(|line| line.starts_with("kvasir_hot_bytes{") && line.contains("\"cpu\""));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    pub(crate) async fn hot_bytes_of_all(&self) -> Vec<u64> {
        let mut all = Vec::new();
        for nth in 0..self.services.len() {
            all.push(self.hot_bytes(nth).await);
        }
        all
    }

    pub(crate) async fn stop(self) {
        for service in self.services.into_iter().flatten() {
            service.stop().await;
        }
        drop(self.directory);
    }
}
