use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    time::Duration,
};

use bytes::Bytes;
use object_store::{GetRange, GetResultPayload, memory::InMemory};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;
use crate::{CallError, observe::RequestOutcome, observe::StoreOp, of_tenant};

/// What the next request meets.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    Fail,
    FailAfter,
    Hang,
    BreakOffAt(usize),
    StallAt(usize),
    EndAt(usize),
}

/// Memory that acts by a script, then behaves.
#[derive(Debug, Clone, Default)]
struct Scripted {
    inner: Arc<InMemory>,
    script: Arc<Mutex<VecDeque<Act>>>,
    asked: Arc<Mutex<Vec<Option<Range<u64>>>>>,
}

impl Scripted {
    fn then(&self, acts: &[Act]) {
        self.script.lock().extend(acts);
    }

    fn act(&self) -> Option<Act> {
        self.script.lock().pop_front()
    }

    async fn before(act: Option<Act>) -> Result<()> {
        match act {
            Some(Act::Fail) => Err(broken()),
            Some(Act::Hang) => std::future::pending().await,
            _ => Ok(()),
        }
    }
}

fn broken() -> Error {
    Error::Generic { store: "scripted", source: "status code: 503 Slow Down".into() }
}

impl fmt::Display for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

#[async_trait]
impl ObjectStore for Scripted {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let act = self.act();
        Self::before(act).await?;
        let result = self.inner.put_opts(location, payload, opts).await;
        if act == Some(Act::FailAfter) { Err(broken()) } else { result }
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let act = self.act();
        let range = match &options.range {
            Some(GetRange::Bounded(range)) => Some(range.clone()),
            _ => None,
        };
        self.asked.lock().push(range);
        Self::before(act).await?;
        let found = self.inner.get_opts(location, options).await?;
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
        let bytes = found.bytes().await?;
        let cut = |at: usize| futures::stream::iter([Ok::<Bytes, Error>(bytes.slice(..at))]);
        let body = match act {
            Some(Act::BreakOffAt(at)) => cut(at).chain(futures::stream::iter([Err(broken())])).boxed(),
            Some(Act::StallAt(at)) => cut(at).chain(futures::stream::pending()).boxed(),
            Some(Act::EndAt(at)) => cut(at).boxed(),
            _ => cut(bytes.len()).boxed(),
        };
        Ok(GetResult { payload: GetResultPayload::Stream(body), meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.inner.list(prefix);
        match self.act() {
            Some(Act::BreakOffAt(at)) => {
                listed.take(at).chain(futures::stream::iter([Err(broken())])).boxed()
            }
            _ => listed,
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        Self::before(self.act()).await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug, Default)]
struct Counts(Mutex<HashMap<StoreEvent, u64>>);

impl StoreObserver for Counts {
    fn request(&self, _: StoreOp, _: RequestOutcome, _: u64, _: Duration) {}

    fn event(&self, event: StoreEvent) {
        *self.0.lock().entry(event).or_default() += 1;
    }
}

impl Counts {
    fn of(&self, event: StoreEvent) -> u64 {
        self.0.lock().get(&event).copied().unwrap_or(0)
    }
}

fn store(change: impl FnOnce(&mut StoreConfig)) -> (Scripted, ResilientStore<Scripted>, Arc<Counts>) {
    let (scripted, counts) = (Scripted::default(), Arc::new(Counts::default()));
    let mut config = StoreConfig::new("memory://".parse().expect("a url"));
    change(&mut config);
    let observer: Arc<dyn StoreObserver> = Arc::<Counts>::clone(&counts);
    (scripted.clone(), ResilientStore::new(scripted, &config, true, observer), counts)
}

async fn read(store: &ResilientStore<Scripted>, path: &Path) -> Result<Bytes> {
    store.get(path).await?.bytes().await
}

#[tokio::test(start_paused = true)]
async fn faults_are_retried_up_to_a_number_and_a_time() {
    let (script, store, counts) = store(|config| config.retries_max = 3);
    let path = Path::from("x");
    script.then(&[Act::Fail, Act::Fail, Act::Fail]);
    store.put(&path, "value".into()).await.expect("the fourth attempt");
    assert_eq!(counts.of(StoreEvent::Retried), 3);
    script.then(&[Act::Fail; 4]);
    store.put(&path, "value".into()).await.expect_err("that was the last");
    // A refusal is an answer.
    let created = store.put_opts(&path, "other".into(), PutMode::Create.into()).await;
    assert!(matches!(created, Err(Error::AlreadyExists { .. })), "{created:?}");
    assert!(matches!(store.get(&Path::from("missing")).await, Err(Error::NotFound { .. })));
    assert_eq!(counts.of(StoreEvent::Retried), 6);
    // In time: attempts that hang end with theirs, and no new one begins behind the last.
    let begun = Instant::now();
    script.then(&[Act::Hang; 4]);
    let error = store.get(&path).await.expect_err("nothing comes");
    assert!(matches!(CallError::of(&error), Some(CallError::Deadline(_))), "{error}");
    assert!(begun.elapsed() <= Duration::from_secs(50), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_was_lost_is_read_back() {
    let (script, store, counts) = store(|_| {});
    let (path, create) = (Path::from("x"), || PutOptions::from(PutMode::Create));
    script.then(&[Act::FailAfter]);
    let made = store.put_opts(&path, "ours".into(), create()).await.expect("it was ours");
    assert_eq!(made.e_tag, store.head(&path).await.expect("is there").e_tag);
    assert_eq!(counts.of(StoreEvent::ReadBack), 1);
    // Somebody else's stays somebody else's, of whatever length.
    for other in ["other", "four"] {
        script.inner.put(&path, other.into()).await.expect("memory");
        script.then(&[Act::Fail]);
        let refused = store.put_opts(&path, "ours".into(), create()).await;
        assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
    }
    // Once means once.
    script.then(&[Act::FailAfter]);
    store.put_opts(&Path::from("once"), "x".into(), once()).await.expect_err("not made again");
    assert!(store.head(&Path::from("once")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn bodies_go_on_where_they_stopped() {
    let bytes = Bytes::from((0..1000u32).map(|i| i as u8).collect::<Vec<_>>());
    for broken in [Act::BreakOffAt(300), Act::StallAt(300), Act::EndAt(300), Act::BreakOffAt(0)] {
        let (script, store, counts) = store(|_| {});
        let path = Path::from("x");
        script.inner.put(&path, bytes.clone().into()).await.expect("memory");
        script.then(&[broken, Act::BreakOffAt(100)]);
        assert_eq!(read(&store, &path).await.expect("whole"), bytes, "{broken:?}");
        assert_eq!(counts.of(StoreEvent::Resumed), 2);
        let first = if broken == Act::BreakOffAt(0) { 0 } else { 300 };
        let asked = script.asked.lock().clone();
        assert_eq!(asked, [None, Some(first..1000), Some(first + 100..1000)], "nothing is read twice");
    }
    // Not when the object has changed.
    let (script, store, _) = store(|_| {});
    let path = Path::from("x");
    script.inner.put(&path, bytes.clone().into()).await.expect("memory");
    script.then(&[Act::BreakOffAt(300)]);
    let begun = store.get(&path).await.expect("begins");
    script.inner.put(&path, bytes.into()).await.expect("memory");
    begun.bytes().await.expect_err("not two halves of two objects");
}

#[tokio::test(start_paused = true)]
async fn listings_go_on_behind_their_last_item() {
    let (script, store, _) = store(|_| {});
    for i in 0..20 {
        script.inner.put(&Path::from(format!("{i:02}")), "x".into()).await.expect("memory");
    }
    script.then(&[Act::BreakOffAt(7), Act::BreakOffAt(3), Act::BreakOffAt(0)]);
    let listed: Vec<_> = store.list(None).try_collect().await.expect("lists");
    let listed: Vec<_> = listed.iter().map(|meta| meta.location.to_string()).collect();
    assert_eq!(listed, (0..20).map(|i| format!("{i:02}")).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_left_alone_and_taken_back() {
    let (script, store, counts) = store(|config| config.retries_max = 0);
    let path = Path::from("x");
    script.then(&vec![Act::Fail; limits::BREAKER_FAULTS as usize]);
    for _ in 0..limits::BREAKER_FAULTS {
        store.put(&path, "x".into()).await.expect_err("away");
    }
    let begun = Instant::now();
    let error = store.put(&path, "x".into()).await.expect_err("not even asked");
    assert_eq!((CallError::of(&error), begun.elapsed()), (Some(CallError::Open), Duration::ZERO));
    assert!(matches!(store.get(&path).await, Err(Error::NotFound { .. })), "reads are another matter");
    tokio::time::sleep(limits::BREAKER_PAUSE_MIN).await;
    store.put(&path, "x".into()).await.expect("it is back");
    let events = [StoreEvent::BreakerOpened, StoreEvent::RefusedByBreaker, StoreEvent::BreakerClosed];
    assert_eq!(events.map(|event| counts.of(event)), [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_sent_again_says_how_it_failed() {
    // With three attempts each, the first one of the sixth request opens the breaker.
    let (script, store, counts) = store(|config| config.retries_max = 2);
    let path = Path::from("x");
    for act in [Act::Fail, Act::BreakOffAt(0)] {
        script.then(&vec![act; limits::BREAKER_FAULTS as usize]);
        for request in 1..=6 {
            let refused = counts.of(StoreEvent::RefusedByBreaker);
            let error = match act {
                Act::Fail => store.put(&path, "x".into()).await.expect_err("away"),
                _ => store.list(None).try_next().await.expect_err("away"),
            };
            assert_eq!(error.to_string(), broken().to_string());
            assert_eq!(counts.of(StoreEvent::RefusedByBreaker) > refused, request == 6);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_served_soon_is_refused() {
    let (script, store, counts) = store(|config| {
        config.requests_max = 1;
        config.request_timeout = Duration::from_secs(60);
    });
    script.then(&[Act::Hang]);
    let (one, two) = (Path::from("1"), Path::from("2"));
    let held = store.get(&one);
    let refused = async {
        tokio::task::yield_now().await;
        store.get(&two).await.expect_err("refused")
    };
    tokio::select! {
        biased;
        _ = held => panic!("it hangs"),
        error = refused => assert_eq!(CallError::of(&error), Some(CallError::Busy)),
    }
    assert_eq!(counts.of(StoreEvent::Busy), 1);
}

#[tokio::test(start_paused = true)]
async fn one_tenant_leaves_as_many_bodies_to_the_others_as_it_holds() {
    // Eight bodies.
    let (script, store, counts) = store(|config| config.requests_max = 2);
    let path = Path::from("x");
    script.inner.put(&path, "value".into()).await.expect("memory");
    let open = async |tenant: &str| store.get_opts(&path, of_tenant(&tenant.parse().expect("a name"))).await;
    let mut greedy = Vec::new();
    for _ in 0..4 {
        greedy.push(open("greedy").await.expect("a half"));
    }
    let error = open("greedy").await.expect_err("the other half is not its own");
    assert_eq!((CallError::of(&error), counts.of(StoreEvent::Busy)), (Some(CallError::Busy), 1));
    let begun = Instant::now();
    let others = [open("other").await, open("other").await].map(|read| read.expect("is served"));
    // As a scrub reads.
    let rest = [store.get(&path).await, store.get(&path).await].map(|read| read.expect("is served"));
    assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits");
    drop(rest);
    let (next, ()) = tokio::join!(open("greedy"), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        greedy.truncate(2);
    });
    next.expect("it has given some back");
    assert_eq!(counts.of(StoreEvent::Busy), 1);
    drop((greedy, others));
}
