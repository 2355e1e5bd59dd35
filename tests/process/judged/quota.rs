//! A tenant at the edge of its quota, on two replicas that are killed: it stores until it is rejected,
//! removes, and stores again. The bytes in the bucket stay within the quota and the documented overshoot,
//! acknowledged data is present, freed space can be used again, and another tenant is never rejected.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kvasir_api::Role;
use kvasir_server::NewToken;
use kvasir_store::StoreConfig;
use kvasir_tests::{
    faulty::Dice,
    process::{Process, Start},
    service::{Api, SERVED_AGAIN, served},
};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use tempfile::TempDir;
use tokio::time::sleep;

use super::STEP_MAX;
use crate::{SERVER, file_store, wanted};

const SECONDS: u64 = 12;
const REPLICAS: usize = 2;
const QUOTA_BYTES: u64 = 1_500_000;
const OBJECT_BYTES_MAX: usize = 20_000;
/// What makes the run a test. A slow machine gets this many times the intended time to reach it.
const GOALS: [(&str, u64); 4] = [("stored", 50), ("refused", 3), ("removed", 20), ("killed", 2)];
const PATIENCE: u32 = 10;
/// Between two objects of a writer.
const PAUSE: Duration = Duration::from_millis(60);
/// Time until each replica has read the other's journal, or has counted after a kill: 2.25 pauses of the
/// journal, a pass of the collector, and a second for busy processors.
const LAG: Duration = Duration::from_millis(2 * 225 + 300 + 1_000);
/// Bytes beyond the quota at the highest rate of the writers: an object of the mean size a pause.
const OVERSHOOT: u64 =
    REPLICAS as u64 * (LAG.as_millis() / PAUSE.as_millis()) as u64 * OBJECT_BYTES_MAX as u64 / 2;
const _: () =
    assert!(OVERSHOOT < QUOTA_BYTES / 2, "replicas that do not count each other's bytes go unnoticed");
/// How long it may take to make freed space usable: the collector must run twice, which takes under a second on a free
/// machine, and two minutes are for a busy one. The replica may refuse before.
const ROOM: Duration = SERVED_AGAIN.saturating_add(Duration::from_secs(120));
/// A pass reads the tombstones and the logs that the store keeps, so the store keeps them as briefly as it may: else the
/// passes of a long run take longer and longer.
const FLAGS: [&str; 6] = [
    "--gc.interval=300ms",
    "--gc.grace=0s",
    "--gc.tombstone_retention=60s",
    "--journal.interval=100ms",
    "--journal.retention=1s",
    "--direct.enabled=false",
];

/// The bounded tenant, with its view of its data.
struct Tenant<'a> {
    token: &'a str,
    replicas: &'a RefCell<[Option<Process>; REPLICAS]>,
    /// Data that was acknowledged and not removed since, by key.
    owed: RefCell<BTreeMap<String, Vec<u8>>>,
    /// Data that may be stored without a promise: requests without an answer.
    leftover: RefCell<BTreeSet<String>>,
    counts: RefCell<BTreeMap<&'static str, u64>>,
    is_over: Cell<bool>,
}

impl Tenant<'_> {
    fn count(&self, what: &'static str) {
        *self.counts.borrow_mut().entry(what).or_default() += 1;
    }

    fn reached_goals(&self) -> bool {
        let counts = self.counts.borrow();
        GOALS.iter().all(|(what, least)| counts.get(what).is_some_and(|count| count >= least))
    }

    fn api(&self, replica: usize) -> Option<Api> {
        self.replicas.borrow()[replica].as_ref().map(|process| process.api().clone())
    }

    fn request(&self, api: &Api, method: Method, key: &str, body: Vec<u8>) -> RequestBuilder {
        let url = format!("http://{}/v1/namespaces/n/objects/{key}", api.address);
        api.http.request(method, url).bearer_auth(self.token).body(body)
    }

    async fn send(&self, api: &Api, method: Method, key: &str, body: Vec<u8>) -> Option<Response> {
        self.request(api, method, key, body).send().await.ok()
    }

    /// The answer of a replica that nobody kills any more.
    async fn served(&self, api: &Api, method: Method, key: &str, body: Vec<u8>) -> Response {
        served(SERVED_AGAIN, || self.request(api, method.clone(), key, body.clone())).await
    }

    /// Stores at one replica, and removes stored objects there if it is rejected.
    async fn write(&self, replica: usize, mut dice: Dice) {
        let mut n = 0;
        while !self.is_over.get() {
            sleep(PAUSE).await;
            let Some(api) = self.api(replica) else { continue };
            n += 1;
            let key = format!("{replica}-{n}");
            let body = vec![n as u8; 1 + dice.below(OBJECT_BYTES_MAX)];
            let status = self.send(&api, Method::PUT, &key, body.clone()).await.map(|answer| answer.status());
            match status.map(|status| status.as_u16()) {
                Some(201) => {
                    self.count("stored");
                    self.owed.borrow_mut().insert(key, body);
                }
                Some(507) => {
                    self.count("refused");
                    self.remove_some(&api, &mut dice).await;
                }
                // The replica was killed, or its store is slow.
                None | Some(503) => {
                    self.count("unknown");
                    self.leftover.borrow_mut().insert(key);
                }
                Some(other) => panic!("{other}"),
            }
        }
    }

    async fn remove_some(&self, api: &Api, dice: &mut Dice) {
        let mut keys: BTreeSet<String> =
            self.owed.borrow().keys().filter(|_| dice.below(3) == 0).cloned().collect();
        // Whatever becomes of the requests, these are owed no more.
        self.owed.borrow_mut().retain(|key, _| !keys.contains(key));
        keys.append(&mut self.leftover.borrow_mut());
        for key in keys {
            self.count("removed");
            self.remove(api, key).await;
        }
    }

    async fn remove(&self, api: &Api, key: String) {
        let answer = self.send(api, Method::DELETE, &key, Vec::new()).await;
        if !answer.is_some_and(|answer| matches!(answer.status().as_u16(), 204 | 404)) {
            self.leftover.borrow_mut().insert(key);
        }
    }
}

/// Bytes of the files below a folder, except files that are being written.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
        _ => entry.metadata().map_or(0, |meta| meta.len()),
    });
    bytes.sum()
}

async fn start(store: &StoreConfig, disk: &Path, tenants: &str) -> Process {
    let start = Start { patience: STEP_MAX, ..Start::new(SERVER, store, disk) };
    let process = start.flags(&FLAGS).flags(&[tenants]).start().await;
    process.ready().await;
    process
}

#[tokio::test]
async fn quota_edges() {
    let directory = TempDir::new().expect("a directory");
    let store = file_store(directory.path());
    let made = |tenant: &str| NewToken::generate(tenant, &tenant.parse().expect("a name"), Role::Write);
    let (bounded, neighbour) = (made("bounded"), made("neighbour"));
    let entries =
        format!("{}{}[tenant.bounded]\nstored_bytes = {QUOTA_BYTES}\n", bounded.entry, neighbour.entry);
    let tenants = directory.path().join("tenants.toml");
    std::fs::write(&tenants, entries).expect("writes");
    let flag = format!("--auth.tenants_file={}", tenants.display());
    let disks: Vec<PathBuf> = (0..REPLICAS).map(|n| directory.path().join(n.to_string())).collect();
    let replicas = RefCell::new([None, None]);
    for (place, disk) in disks.iter().enumerate() {
        let process = start(&store, disk, &flag).await;
        replicas.borrow_mut()[place] = Some(process);
    }
    let new = |token| Tenant {
        token,
        replicas: &replicas,
        owed: RefCell::default(),
        leftover: RefCell::default(),
        counts: RefCell::default(),
        is_over: Cell::new(false),
    };
    let (tenant, other) = (new(&bounded.token), new(&neighbour.token));
    let time = Duration::from_secs(wanted("KVASIR_TEST_PROCESS_SECONDS", SECONDS));
    let mut dice = Dice::new(wanted("KVASIR_TEST_PROCESS_SEED", 1));
    let (begun, folder) = (Instant::now(), directory.path().join("store/2/t/bounded"));
    let (writers, neighbours) = ([dice.number(), dice.number()], dice.number());
    let kills = async {
        while begun.elapsed() < time || !tenant.reached_goals() && begun.elapsed() < time * PATIENCE {
            sleep(Duration::from_millis(1_500 + dice.below(2_000) as u64)).await;
            let place = dice.below(REPLICAS);
            let process = replicas.borrow_mut()[place].take();
            process.expect("one at a time").kill();
            tenant.count("killed");
            let process = start(&store, &disks[place], &flag).await;
            replicas.borrow_mut()[place] = Some(process);
        }
        tenant.is_over.set(true);
        other.is_over.set(true);
    };
    let most = Cell::new(0);
    let look = async {
        while !tenant.is_over.get() {
            sleep(Duration::from_millis(200)).await;
            let bytes = bytes_below(&folder);
            assert!(bytes <= QUOTA_BYTES + OVERSHOOT, "{bytes} in the bucket, {:?}", tenant.counts.borrow());
            let before = most.get();
            most.set(bytes.max(before));
        }
    };
    let [a, b] = writers.map(Dice::new);
    tokio::join!(tenant.write(0, a), tenant.write(1, b), other.write(0, Dice::new(neighbours)), kills, look);

    let api = tenant.api(0).expect("it runs");
    for (key, bytes) in tenant.owed.take() {
        let found = tenant.served(&api, Method::GET, &key, Vec::new()).await;
        assert_eq!(found.status(), StatusCode::OK, "{key}");
        assert_eq!(found.bytes().await.expect("a body"), bytes, "{key}");
        tenant.leftover.borrow_mut().insert(key);
    }
    // All that it has is gone, and then there is room for as much as before.
    for key in tenant.leftover.take() {
        let status = tenant.served(&api, Method::DELETE, &key, Vec::new()).await.status();
        assert!(matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_FOUND), "{key}: {status}");
    }
    let begun = Instant::now();
    let half = vec![7; QUOTA_BYTES as usize / 2];
    loop {
        // It may have been stored before by a request whose answer was lost.
        let status = tenant.served(&api, Method::PUT, "half", half.clone()).await.status();
        if status.is_success() {
            break;
        }
        assert!(begun.elapsed() < ROOM, "no room: {status}, {} bytes are there", bytes_below(&folder));
        sleep(Duration::from_millis(200)).await;
    }
    let room = begun.elapsed();
    let (counts, others) = (tenant.counts.borrow(), other.counts.borrow());
    println!(
        "quota of {QUOTA_BYTES} bytes: at most {} lay there; {counts:?}; neighbour {others:?}; room after {room:?}",
        most.get()
    );
    assert!(tenant.reached_goals(), "{counts:?}");
    let of = |what| others.get(what).copied().unwrap_or(0);
    assert!(of("refused") == 0 && of("stored") > of("unknown"), "{others:?}");
}
