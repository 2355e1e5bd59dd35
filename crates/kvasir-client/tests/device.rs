//! Pages of a device that decodes chunks itself: what a load asks of it, and what becomes of its answers.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use common::{
    LAYERS, builder, connect, find, kv, load, profile, save, spec, start, tokens, warnings::Warnings,
};
use kvasir_client::{
    pages::{
        BlockTable, DeviceBytes, DeviceDecode, DeviceDecoder, DevicePart, HostPages, PageRef, PageRows,
        PageStore, PartOutcome, Shard,
    },
    tuning::{DecodeModel, LoadOptions},
};
use kvasir_codec::{KvBuffer, Profile};
use kvasir_train::{BasisRecipe, Recipe, TrainingContext, train};
use kvasir_types::Level;
use tokio::{runtime::Handle, time};

const PAGE_TOKENS: usize = 24;

type Answer = Box<dyn Fn(&[DevicePart<'_>]) -> Result<DeviceDecode, String> + Send + Sync>;

/// The same of all parts.
fn all(parts: &[DevicePart<'_>], outcome: PartOutcome) -> Result<DeviceDecode, String> {
    Ok(DeviceDecode { outcomes: vec![outcome; parts.len()], ..DeviceDecode::default() })
}

/// Pages, first slot and tokens of a part.
type Asked = (Vec<u32>, usize, usize);

/// Pages in host memory behind a device that answers as a test says. What it says it decoded is not there.
struct Device {
    pages: Arc<HostPages>,
    answer: Answer,
    /// What it was asked for, and what of it together.
    asked: Mutex<Vec<Vec<Asked>>>,
}

impl Device {
    fn new(
        tokens: usize,
        answer: impl Fn(&[DevicePart<'_>]) -> Result<DeviceDecode, String> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let pages = HostPages::new(&spec(), PAGE_TOKENS, tokens).unwrap();
        Arc::new(Self { pages, answer: Box::new(answer), asked: Mutex::default() })
    }

    fn table(self: &Arc<Self>, tokens: usize) -> BlockTable {
        let pages: Vec<_> =
            (0..tokens.div_ceil(PAGE_TOKENS) as u32).map(|index| PageRef { index, generation: 0 }).collect();
        BlockTable::new(Arc::clone(self) as _, pages, PAGE_TOKENS).unwrap()
    }
}

impl PageStore for Device {
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
        self.pages.write(page, rows)
    }

    fn device(&self) -> Option<&dyn DeviceDecoder> {
        Some(self)
    }
}

impl DeviceDecoder for Device {
    fn decode(&self, parts: &[DevicePart<'_>]) -> Result<DeviceDecode, String> {
        let of_part = |part: &DevicePart<'_>| -> Asked {
            let pages = part.pages().iter().map(|page| page.index).collect();
            (pages, part.first_slot(), part.tokens().len())
        };
        self.asked.lock().unwrap().push(parts.iter().map(of_part).collect());
        (self.answer)(parts)
    }
}

#[tokio::test]
async fn a_device_is_given_each_part_once_with_its_own_pages() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(700, 1);
    save(&kvasir, &text).await;
    let device = Device::new(700, |parts| {
        for part in parts {
            assert_eq!(part.profile().hash(), profile().hash());
            assert_eq!((part.level(), part.scopes().is_empty()), (Level(1), false));
            assert_eq!(part.scopes(), parts[0].scopes(), "what is decoded together has the same layers");
        }
        all(parts, PartOutcome::Decoded)
    });
    // A rank that holds the first layers only is not asked for the others' scopes.
    let shard = Shard { layers: 0..2, ..Shard::ALL };
    for (table, parts) in [(device.table(700), 6), (device.table(700).with_shard(shard), 3)] {
        device.asked.lock().unwrap().clear();
        let session = find(&kvasir, &text).await;
        let loaded = session.load([table], LoadOptions::at_level(Level(1))).unwrap().finish().await;
        let used = &loaded.report().unwrap().device;
        assert_eq!((loaded.loaded_tokens(), used.parts, used.refused_parts), (700, parts, 0));
        let mut asked = std::mem::take(&mut *device.asked.lock().unwrap()).concat();
        asked.sort();
        asked.dedup();
        // Chunks of 256 tokens in pages of 24: they begin in the middle of pages.
        let pages = |first: u32, end: u32| (first..end).collect::<Vec<u32>>();
        assert_eq!(asked, [(pages(0, 11), 0, 256), (pages(10, 22), 16, 256), (pages(21, 30), 8, 188)]);
    }
}

#[tokio::test]
async fn what_a_device_does_not_decode_is_decoded_on_the_cpu() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(700, 1);
    save(&kvasir, &text).await;
    let (_, expected) = load(&find(&kvasir, &text).await, LoadOptions::at_level(Level(1))).await;
    let device = Device::new(700, |_| Err("it is full".into()));
    let session = find(&kvasir, &text).await;
    let options = LoadOptions::at_level(Level(1));
    let loaded = session.load([device.table(700)], options).unwrap().finish().await;
    assert_eq!(loaded.loaded_tokens(), 700);
    let used = &loaded.report().unwrap().device;
    assert_eq!((used.parts, used.first_reason.as_deref()), (0, Some("it is full")));
    let asked = std::mem::take(&mut *device.asked.lock().unwrap());
    // Two threads may have asked when the third fault ends the asking.
    assert!((3..=4).contains(&asked.len()), "{asked:?}");
    assert_eq!(used.refused_parts, asked.concat().len() as u64);
    // Each kind of load learns from its own: the load into host pages, which knew nothing, from none of these.
    let times = |model: &Option<DecodeModel>| model.as_ref().map(|model| model.predict(1000, 1000));
    let (before, costs) = (kvasir.costs(), {
        let session = find(&kvasir, &text).await;
        let options = LoadOptions::at_level(Level(1));
        let _ = session.load([device.table(700)], options).unwrap().finish().await;
        kvasir.costs()
    });
    assert_eq!(times(&costs.decode), times(&before.decode));
    assert_ne!(times(&costs.device_decode), times(&before.device_decode));
    assert_eq!(KvBuffer::from_source(&spec(), 700, &*device.pages).as_slice(), expected.as_slice());
}

/// Whatever goes to the device together with them: the parts of one chunk are the CPU's, and no fault of the device.
#[tokio::test]
async fn parts_that_a_device_refuses_take_no_others_with_them() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(700, 1);
    save(&kvasir, &text).await;
    let (_, expected) = load(&find(&kvasir, &text).await, LoadOptions::at_level(Level(1))).await;
    let memory = DeviceBytes { scratch: 3, pinned: 2, profiles: 1 };
    let device = Device::new(700, move |parts| {
        // The second chunk, which begins in the middle of a page.
        let refused = || PartOutcome::Refused("it is odd".into());
        let outcome = |part: &DevicePart<'_>| match part.first_slot() {
            16 => refused(),
            _ => PartOutcome::Decoded,
        };
        let outcomes = parts.iter().map(outcome).collect();
        Ok(DeviceDecode { outcomes, memory, ..DeviceDecode::default() })
    });
    let session = find(&kvasir, &text).await;
    let options = LoadOptions::at_level(Level(1));
    let loaded = session.load([device.table(700)], options).unwrap().finish().await;
    assert_eq!(loaded.loaded_tokens(), 700);
    let used = &loaded.report().unwrap().device;
    assert_eq!((used.parts, used.refused_parts, used.memory), (4, 2, memory));
    assert_eq!(used.first_reason.as_deref(), Some("it is odd"));
    // What the device says it decoded is not there.
    let found = KvBuffer::from_source(&spec(), 700, &*device.pages);
    assert_eq!(found.slice(256..512).as_slice(), expected.slice(256..512).as_slice());
    assert!(found.slice(0..256).as_slice().iter().all(|value| *value == 0.0));
}

/// A profile that decodes layer by layer.
fn profile_of_layers() -> Profile {
    let text = tokens(1024, 99);
    let context = TrainingContext { first_position: 0, kv: kv(&text), tokens: text };
    let recipe = BasisRecipe {
        scope_layers: Some(1),
        token_factors: [0, 0],
        exact_tokens: Some(0),
        ..BasisRecipe::default()
    };
    train(&spec(), &[context], &Recipe::Basis(recipe), 0.01, &mut |_, _| ()).unwrap()
}

/// Once it is slow, it takes a second for whatever it is given, by the test's clock. The engine needs all of a load's time for
/// itself.
#[tokio::test]
async fn a_device_that_becomes_slower_than_it_was_is_given_no_more() {
    let server = start().await;
    let kvasir = builder(&server).profile(profile_of_layers()).connect().await.unwrap();
    let text = tokens(256, 1);
    save(&kvasir, &text).await;
    let (turn, is_slow) = (Mutex::new(()), Arc::new(AtomicBool::new(false)));
    let slow = Arc::clone(&is_slow);
    let device = Device::new(256, move |parts| {
        if slow.load(Ordering::Relaxed) {
            let _turn = turn.lock().unwrap();
            Handle::current().block_on(async {
                time::pause();
                time::advance(Duration::from_secs(1)).await;
                time::resume();
            });
        }
        all(parts, PartOutcome::Decoded)
    });
    // Six runs each tell how fast it is. The loads after those ask it again, and learn nothing from it.
    for (slow, ranks) in [(false, 1), (false, 1), (true, 1), (true, 1), (true, 2)] {
        is_slow.store(slow, Ordering::Relaxed);
        let warnings = Warnings::collect();
        let suffix_time = Some(Duration::from_secs(7_200));
        let options = LoadOptions { suffix_time, ..LoadOptions::at_level(Level::BASE) };
        let tables = (0..ranks)
            .map(|rank| device.table(256).with_shard(Shard::tensor_parallel(rank, ranks, 2)))
            .collect::<Vec<_>>();
        let loaded = find(&kvasir, &text).await.load(tables, options).unwrap().finish().await;
        let used = &loaded.report().unwrap().device;
        let what = format!("slow: {slow}, {ranks} ranks: {used:?}");
        assert_eq!(loaded.loaded_tokens(), 256, "{what}");
        assert_eq!(used.parts + used.slow_parts, (ranks * LAYERS) as u64, "{what}");
        assert_eq!((used.slow_parts > 0, used.refused_parts), (slow, 0), "{what}");
        // Two that decide, one that may have been under way with the first, and one behind it.
        assert!(ranks > 1 || !slow || (2..=4).contains(&used.parts), "{what}");
        assert_eq!(used.first_reason.is_some(), slow, "{what}");
        assert_eq!(warnings.with("a device is slow"), usize::from(slow), "{what}");
    }
}

#[tokio::test]
async fn a_load_into_pages_that_a_device_has_reassigned_is_not_used() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(700, 1);
    save(&kvasir, &text).await;
    let device = Device::new(700, |parts| all(parts, PartOutcome::Stale));
    let session = find(&kvasir, &text).await;
    let options = LoadOptions::at_level(Level(1));
    let loaded = session.load([device.table(700)], options).unwrap().finish().await;
    assert_eq!(loaded.loaded_tokens(), 0);
    let report = loaded.report().unwrap();
    assert!(report.stale_rows > 0 && report.device.parts == 0, "{:?}", report.device);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_is_dropped_waits_for_the_part_that_a_device_decodes() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(700, 1);
    save(&kvasir, &text).await;
    let (begun, has_begun) = mpsc::channel();
    let (go_on, may_end) = mpsc::channel::<()>();
    let may_end = Mutex::new(may_end);
    let device = Device::new(700, move |parts| {
        begun.send(()).unwrap();
        let _ = may_end.lock().unwrap().recv_timeout(Duration::from_secs(20));
        all(parts, PartOutcome::Decoded)
    });
    let session = find(&kvasir, &text).await;
    let running = session.load([device.table(700)], LoadOptions::at_level(Level(1))).unwrap();
    let (dropped, is_dropped) = mpsc::channel();
    tokio::task::spawn_blocking(move || {
        has_begun.recv_timeout(Duration::from_secs(20)).unwrap();
        let dropping = std::thread::spawn(move || {
            drop(running);
            dropped.send(()).unwrap();
        });
        let early = is_dropped.recv_timeout(Duration::from_millis(200));
        assert!(early.is_err(), "the load was gone, and the device still wrote");
        // Every part under way; the others find the gate closed.
        (0..LAYERS).for_each(|_| go_on.send(()).unwrap_or_default());
        is_dropped.recv_timeout(Duration::from_secs(20)).unwrap();
        dropping.join().unwrap();
        assert!(has_begun.try_iter().count() <= 1, "a part began after the load had gone");
    })
    .await
    .unwrap();
}
