//! Several replicas over one bucket: each prompt goes to the replica that keeps it, and to another where that is away.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use kvasir_api::{
    ErrorCode, HEADER_ROUTE, HEADER_SPLIT, LookupQuery, LookupResponse, MEDIA_PROBLEM, MembersResponse,
    Problem, ROUTE_REPLICAS, routes,
};
use kvasir_client::rest::ClientConfig;
use kvasir_tests::{chunks, service::expect_problem};
use kvasir_types::{ObjectKey, RouteKey, TokenChain};
use reqwest::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::replicas::{HEDGES_MAX, PROMPTS, Replicas, TOKENS, ports};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_prompt_is_kept_by_its_first_replica_alone() {
    let replicas = Replicas::start(3).await;
    let client = replicas.client(0).await;
    for seed in 0..PROMPTS {
        replicas.store(&client, seed).await;
    }
    let mut hot = Vec::new();
    for nth in 0..3 {
        hot.push(replicas.hot_bytes(nth).await);
    }
    assert!(hot.iter().all(|bytes| *bytes > 0), "each keeps a part of the prompts: {hot:?}");
    // Another client, given another address, finds each prompt where it is kept.
    let client = replicas.client(2).await;
    let mut before = Vec::new();
    for nth in 0..3 {
        before.push(replicas.routed(nth, "second").await + replicas.routed(nth, "other").await);
    }
    let found = replicas.load_all(&client).await;
    assert!(found + HEDGES_MAX >= PROMPTS as usize, "{found} of {PROMPTS} are hot where they are asked for");
    let mut elsewhere = 0;
    for (nth, before) in before.into_iter().enumerate() {
        elsewhere += replicas.routed(nth, "second").await + replicas.routed(nth, "other").await - before;
        assert!(replicas.hot_bytes(nth).await >= hot[nth]);
    }
    assert!(elsewhere <= HEDGES_MAX as u64, "{elsewhere} requests went to others than the first");
    let members: MembersResponse =
        replicas.service(1).get(routes::MEMBERS, &[]).await.json().await.expect("its JSON");
    assert_eq!(members.this.as_ref(), Some(&replicas.urls[1]));
    assert_eq!((members.members.len(), members.splits.len()), (3, 0));
    replicas.stop().await;
}

/// The list has no zones, as one from DNS: the client hears them from the replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_replicas_that_keep_a_prompt_the_one_in_the_clients_zone_is_asked() {
    let replicas = Replicas::start(3).await;
    let zone = Some("z2".parse().expect("a name"));
    let client = replicas.client_with(0, ClientConfig { zone, ..ClientConfig::default() }).await;
    let is_kept_by_2 = |seed: &u64| {
        let route = RouteKey::of(replicas.chain(*seed).blocks(), |_| false).expect("is long enough");
        let members = replicas.urls.iter().map(|url| (url.as_str(), 1.0));
        route.rank(members).iter().take(ROUTE_REPLICAS).any(|nth| *nth == 2)
    };
    let kept: Vec<u64> = (0..PROMPTS).filter(is_kept_by_2).collect();
    let before = replicas.kept().await;
    for seed in &kept {
        replicas.lookup(&client, *seed).await;
    }
    let asked: Vec<u64> =
        replicas.kept().await.iter().zip(before).map(|(now, before)| now - before).collect();
    let wanted = kept.len() as u64;
    assert!((wanted..=wanted + HEDGES_MAX as u64).contains(&asked[2]), "{asked:?} of {wanted}");
    assert!(asked[0] + asked[1] <= HEDGES_MAX as u64, "{asked:?} of {wanted}");
    assert!(replicas.routed(2, "second").await > 0, "it is asked where another is the first too");
    replicas.stop().await;
}

/// What others keep is answered all the same, and takes no memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_keeps_no_part_of_a_prompt_answers_colder() {
    let replicas = Replicas::start(3).await;
    let client = replicas.client(0).await;
    replicas.store(&client, 1).await;
    let chain = replicas.chain(1);
    let route = RouteKey::of(chain.blocks(), |_| false).expect("a route").to_string();
    let chunk = chunks::chunk(replicas.root, &chunks::tokens(1, TOKENS), 0, TOKENS, 5_000);
    let path = routes::chunk_object(&replicas.model_id, &chunk.seq_hash, &chunk.object_digest);
    let mut places = Vec::new();
    for nth in 0..3 {
        let service = replicas.service(nth);
        let (before, others) = (replicas.hot_bytes(nth).await, replicas.routed(nth, "other").await);
        for _ in 0..2 {
            let answer = service.get(&path, &[(HEADER_ROUTE, &route)]).await;
            assert!(answer.headers().contains_key("kvasir-members"));
            assert!(answer.bytes().await.expect("reads") == chunk.bytes);
        }
        let is_other = replicas.routed(nth, "other").await > others;
        places.push(is_other);
        let grew = replicas.hot_bytes(nth).await > before;
        assert!(!is_other || !grew, "replica {nth} took in what it does not keep");
        // Without a route nobody knows who keeps it.
        assert!(service.get(&path, &[]).await.bytes().await.expect("reads") == chunk.bytes);
    }
    assert_eq!(places.iter().filter(|is_other| **is_other).count(), 1);
    let answer = replicas.service(0).get(&path, &[(HEADER_ROUTE, "no route")]).await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    expect_problem(answer, "bad_request").await;
    replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_goes_is_passed_over_and_no_request_fails() {
    let mut replicas = Replicas::start(3).await;
    let client = replicas.client(0).await;
    for seed in 0..PROMPTS {
        replicas.store(&client, seed).await;
    }
    replicas.services[2].take().expect("runs").stop().await;
    replicas.load_all(&client).await;
    assert!(replicas.routed(0, "second").await + replicas.routed(1, "second").await > 0);
    // And what it kept is hot at the second one by now.
    let found = replicas.load_all(&client).await;
    assert!(found + HEDGES_MAX >= PROMPTS as usize, "{found} of {PROMPTS} are hot");
    replicas.stop().await;
}

/// A member of the list that is no service: it answers probes, and gives everything else the same answer.
struct StandIn {
    address: SocketAddr,
    is_ready: AtomicBool,
    /// Requests that were no probes.
    asked: AtomicU64,
}

impl StandIn {
    async fn start(is_ready: bool, answer: String) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let this = Arc::new(Self { address, is_ready: is_ready.into(), asked: AtomicU64::new(0) });
        let serving = Arc::clone(&this);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&serving).serve(stream, answer.clone()));
            }
        });
        this
    }

    /// One request. Reads until its client hangs up, which has its answer or no longer waits for one.
    async fn serve(self: Arc<Self>, mut stream: tokio::net::TcpStream, answer: String) {
        let mut begin = [0; 12];
        if stream.read_exact(&mut begin).await.is_err() {
            return;
        }
        let answer = match (&begin == b"GET /readyz ", self.is_ready.load(Ordering::Relaxed)) {
            (true, true) => response("200 OK", ""),
            (true, false) => response("503 Service Unavailable", ""),
            (false, _) => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                answer
            }
        };
        if stream.write_all(answer.as_bytes()).await.is_ok() {
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn response(status: &str, body: &str) -> String {
    let bytes = body.len();
    format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: {MEDIA_PROBLEM}\r\ncontent-length: {bytes}\r\n\r\n{body}"
    )
}

/// Stores prompts through a replica that runs, and returns those whose first replica is the third of the list.
async fn prompts_of_the_third(replicas: &Replicas) -> Vec<u64> {
    let mut seeds = Vec::new();
    for seed in 0..PROMPTS {
        let route = RouteKey::of(replicas.chain(seed).blocks(), |_| false).expect("is long enough");
        if route.rank(replicas.urls.iter().map(|url| (url.as_str(), 1.0)))[0] == 2 {
            let chunk = chunks::chunk(replicas.root, &chunks::tokens(seed, TOKENS), 0, TOKENS, 5_000);
            let put = replicas.service(0).put(&replicas.model_id, &chunk).await;
            assert_eq!(put.status(), StatusCode::CREATED);
            seeds.push(seed);
        }
    }
    assert!(!seeds.is_empty());
    seeds
}

/// It takes the lookup and does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_whose_first_replica_is_late_is_answered_by_the_second() {
    // Half of the time after which a client gives a lookup up.
    const LATE: Duration = Duration::from_secs(5);
    let late = StandIn::start(false, String::new()).await;
    let replicas = Replicas::start_among(2, &[late.address]).await;
    // Until it is ready clients pass it over, and measure how long lookups take.
    let client = replicas.client(0).await;
    let seeds = prompts_of_the_third(&replicas).await;
    late.is_ready.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    for seed in seeds.iter().cycle() {
        let (before, sent) = (late.asked(), Instant::now());
        assert_eq!(replicas.lookup(&client, *seed).await.matched_tokens, TOKENS as u64);
        // Of all lookups a twentieth may be hedged: one that comes too early waits.
        if late.asked() > before && sent.elapsed() < LATE {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "it was asked {before} times");
        if late.asked() > before {
            // It waited, and counts as slow. As many as are remembered come before the next, and earn a hedge.
            late.is_ready.store(false, Ordering::Relaxed);
            for seed in 1 << 40..(1 << 40) + 64 {
                replicas.lookup(&client, seed).await;
            }
            late.is_ready.store(true, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_draining_replica_refuses_the_second_serves() {
    let problem = Problem::new(ErrorCode::Draining, "this replica is shutting down; use another replica");
    let problem = serde_json::to_string(&problem).expect("JSON");
    let draining = StandIn::start(true, response("503 Service Unavailable", &problem)).await;
    let replicas = Replicas::start_among(2, &[draining.address]).await;
    let client = replicas.client(0).await;
    // Until its probe is answered it is passed over.
    let mut warm_up = 1 << 40..;
    while draining.asked() == 0 {
        replicas.lookup(&client, warm_up.next().expect("endless")).await;
    }
    for seed in prompts_of_the_third(&replicas).await {
        let before = draining.asked();
        replicas.load(&client, seed).await;
        assert!(draining.asked() >= before + 2, "the lookup and the read went there first");
    }
    replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_that_too_many_prompts_share_is_split_and_they_spread() {
    let replicas = Replicas::start(3).await;
    let client = replicas.client(0).await;
    // Four steps of routes, which are split at once.
    let template = chunks::tokens(7, 1_024);
    let prompt = |n: u64| {
        let tokens = [template.clone(), chunks::tokens(100 + n, 256)].concat();
        TokenChain::new(replicas.root, &tokens)
    };
    let target = LookupQuery {
        model_id: replicas.model_id,
        namespace: "n".parse().expect("a name"),
        fresh: false,
        direct: false,
    };
    let before = replicas.kept().await;
    for n in 0..200 {
        let chain = prompt(n);
        client.for_prompt(chain.blocks()).lookup_blocks(&target, chain.blocks()).await.expect("an answer");
    }
    let mut of_replicas: Vec<_> =
        replicas.kept().await.iter().zip(before).map(|(now, so_far)| now - so_far).collect();
    of_replicas.sort_unstable();
    // The first 32 went to one; the others by what follows the template.
    assert!(of_replicas[0] > 20 && of_replicas[2] < 150, "{of_replicas:?}");
    let route = RouteKey::of(prompt(0).blocks(), |_| false).expect("a route");
    let mut split: Vec<_> = [route].into_iter().chain(route.longer(prompt(0).blocks()).take(3)).collect();
    let told: Vec<_> = split.iter().map(ToString::to_string).collect();
    split.sort_unstable();
    let mut keepers = Vec::new();
    for nth in 0..3 {
        let service = replicas.service(nth);
        let list: MembersResponse = service.get(routes::MEMBERS, &[]).await.json().await.expect("its JSON");
        let mut splits = list.splits;
        splits.sort_unstable();
        if splits == split {
            keepers.push(nth);
        }
    }
    assert_eq!(keepers.len(), 1, "who keeps the prefix decides, and nobody else");
    // A client that does not know is told so by the replica that it asks.
    let service = replicas.service(keepers[0]);
    let body = serde_json::json!({
        "model_id": replicas.model_id, "namespace": "n", "block_hashes": prompt(500).blocks(),
    });
    let request = service.http.post(format!("http://{}{}", service.address, routes::LOOKUP));
    let answer = request.header(HEADER_ROUTE, route.to_string()).json(&body).send().await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    let split = answer.headers().get(HEADER_SPLIT).expect("is told").to_str().expect("ASCII");
    assert_eq!(split, told.join(","));
    replicas.stop().await;
}

/// Objects by key: each key has its own replica, and a request for many is divided among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_is_kept_by_its_replica_and_batches_are_divided() {
    const OBJECTS: u64 = 60;
    let mut replicas = Replicas::start(3).await;
    let client = replicas.client(0).await;
    let namespace = "n".parse().expect("a name");
    let object = |n: u64| {
        let bytes: Vec<u8> = (0..20_000).map(|at| (at * (n + 3)) as u8).collect();
        (format!("page-{n}").parse::<ObjectKey>().expect("a key"), Bytes::from(bytes))
    };
    let objects: Vec<_> = (0..OBJECTS).map(object).collect();
    let keys: Vec<_> = objects.iter().map(|(key, _)| key.clone()).collect();
    let before = replicas.hot_bytes_of_all().await;
    let written = client.write_opaque(&namespace, &objects).await.expect("an outcome for each");
    assert!(written.iter().all(|object| object.created), "{written:?}");
    let expected: Vec<Vec<u8>> = objects.iter().map(|(_, bytes)| bytes.to_vec()).collect();
    assert!(
        client.read_opaque(&namespace, &keys).await.expect("reads") == expected,
        "in the order of the keys"
    );
    let hot: Vec<u64> =
        replicas.hot_bytes_of_all().await.iter().zip(before).map(|(now, before)| now - before).collect();
    let (all, once) = (hot.iter().sum::<u64>(), OBJECTS * 20_000);
    assert!(
        hot.iter().all(|bytes| *bytes > 0) && (once..once + once / 4).contains(&all),
        "{hot:?} of {once}"
    );
    for (key, bytes) in objects.iter().take(5) {
        assert_eq!(client.get_opaque(&namespace, key).await.expect("reads"), bytes.to_vec());
    }
    let wanted: Vec<_> = (0u64..).zip(&keys).map(|(first, key)| (key.clone(), first..first + 9)).collect();
    let parts = client.read_opaque_ranges(&namespace, &wanted).await.expect("reads");
    let cut: Vec<&[u8]> =
        expected.iter().enumerate().map(|(first, bytes)| &bytes[first..first + 9]).collect();
    assert!(parts == cut, "each key has its own range");
    // A key that is not there, in the middle.
    let mut gap = keys.clone();
    gap.insert(25, "page-x".parse().expect("a key"));
    assert_eq!(client.lookup_opaque(&namespace, &gap).await.expect("answers").len(), 25);
    let each = client.lookup_opaque_each(&namespace, &gap).await.expect("answers");
    assert!(each.iter().enumerate().all(|(at, size)| *size == (at != 25).then_some(20_000)), "{each:?}");
    assert!(client.read_opaque(&namespace, &gap).await.expect("reads") == expected[..25]);
    client.delete_opaque(&namespace, &keys[7]).await.expect("removes");
    assert_eq!(client.lookup_opaque(&namespace, &keys).await.expect("answers").len(), 7);
    // The others answer for one that is gone.
    replicas.services[1].take().expect("runs").stop().await;
    assert!(client.read_opaque(&namespace, &keys[8..]).await.expect("reads") == expected[8..]);
    replicas.stop().await;
}

/// Nine members are a large cluster: each has rows of its own part of the index. Two of them run, six refuse connections, and one
/// takes them and never answers. Clients probe these and send them nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_large_cluster_each_replica_knows_its_own_part() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let (_closed, closed) = ports(6);
    let others = [closed, vec![silent.local_addr().expect("bound")]].concat();
    let heads = std::thread::spawn(move || {
        let mut heads = Vec::new();
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = silent.accept() {
            let mut head = [0; 5];
            if std::io::Read::read_exact(&mut stream, &mut head).is_err() || &head == b"STOP " {
                return heads;
            }
            let mut rest = [0; 7];
            std::io::Read::read_exact(&mut stream, &mut rest).expect("a path");
            heads.push(String::from_utf8_lossy(&[&head[..], &rest].concat()).into_owned());
            kept.push(stream);
        }
        heads
    });
    let replicas = Replicas::start_among(2, &others).await;
    let client = replicas.client(0).await;
    // Twice as many: each replica keeps a fifth of them.
    for seed in 0..2 * PROMPTS {
        replicas.store(&client, seed).await;
    }
    replicas.load_all(&client).await;
    // Both stored some, both hear of removals, neither reads what the other stored.
    let mut rows = Vec::new();
    for nth in 0..2 {
        let text = replicas.service(nth).metrics().await;
        let row = text.lines().find_map(|line| line.strip_prefix("kvasir_index_rows ")?.parse::<u64>().ok());
        rows.push(row.expect("there from the start"));
    }
    assert!(rows.iter().all(|rows| *rows > 0) && rows.iter().sum::<u64>() < 4 * PROMPTS, "{rows:?}");
    let chunk = chunks::chunk(replicas.root, &chunks::tokens(3, TOKENS), 0, TOKENS, 5_000);
    client.delete_chunk(&replicas.model_id, &chunk.seq_hash).await.expect("is removed");
    let body = serde_json::json!({
        "model_id": replicas.model_id, "namespace": "n", "block_hashes": replicas.chain(3).blocks(),
    });
    for nth in 0..2 {
        let service = replicas.service(nth);
        let mut matched = 1;
        for _ in 0..300 {
            let request = service.http.post(format!("http://{}{}", service.address, routes::LOOKUP));
            let answer = request.json(&body).send().await.expect("an answer");
            let answer: LookupResponse = answer.json().await.expect("its JSON");
            matched = answer.matched_tokens;
            if matched == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(matched, 0, "replica {nth}");
    }
    let address = others[6];
    std::io::Write::write_all(&mut std::net::TcpStream::connect(address).expect("connects"), b"STOP ")
        .expect("writes");
    let heads = heads.join().expect("no panic");
    assert!(heads.iter().all(|head| head == "GET /readyz "), "{heads:?}");
    replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_request() {
    let mut replicas = Replicas::start(3).await;
    let client = replicas.client(0).await;
    for seed in 0..PROMPTS {
        replicas.store(&client, seed).await;
    }
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    for nth in 0..3 {
        let service = replicas.services[nth].take().expect("runs");
        // Under load for a while without the replica, and with it before the next one goes.
        let under_load = async || {
            let so_far = rounds.load(Ordering::Relaxed);
            while rounds.load(Ordering::Relaxed) < so_far + 24 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let restart = async {
            service.stop().await;
            under_load().await;
            let service = Replicas::start_one(&replicas.directory, &replicas.urls, nth).await;
            under_load().await;
            is_over.store(true, Ordering::Relaxed);
            service
        };
        // Each load and each store panics if its request fails.
        let load = async {
            let mut seed = 0;
            while !is_over.load(Ordering::Relaxed) {
                replicas.load(&client, seed % PROMPTS).await;
                replicas.store(&client, 1_000 * (nth as u64 + 1) + seed).await;
                seed += 1;
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        };
        let (service, ()) = tokio::join!(restart, load);
        is_over.store(false, Ordering::Relaxed);
        replicas.services[nth] = Some(service);
    }
    replicas.stop().await;
}
