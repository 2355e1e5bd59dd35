//! Thinned caches that were stored are restored bit for bit, at their original positions.

use std::sync::Arc;

use kvasir_codec::KvBuffer;
use kvasir_engine::{Model, PagedKv};
use kvasir_lab::budget::{H2o, Keep, PrefixStatistics, StreamingLlm, ThinClass, ThinnedStore, TokenPolicy};
use kvasir_store::StoreConfig;
use kvasir_tests::service::Service;
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{Level, Plane, Thinning};
use tempfile::TempDir;

const TEXT: &str = include_str!("../../crates/kvasir-engine/tests/data/harbour.txt");
/// Tokens of the whole context, of which a layer or head keeps a part.
const CONTEXT: usize = 200;
const BUDGETS: [usize; 8] = [40, 60, 50, 70, 64, 200, 32, 45];
/// The value at places into which nothing was loaded.
const UNTOUCHED: f32 = 7.5;

struct Bench {
    model: Model,
    url: String,
    tokens: Vec<u32>,
    kv: PagedKv,
    statistics: PrefixStatistics,
}

impl Bench {
    fn new(service: &Service) -> Self {
        let model = Model::kvasir_tiny().expect("embedded");
        let url = format!("http://{}", service.address);
        let mut tokens = model.tokenizer().encode(TEXT).expect("tokens");
        tokens.truncate(CONTEXT);
        let mut kv = model.new_kv().expect("a cache");
        let statistics = PrefixStatistics::gather(&model, &mut kv, &tokens, 32).expect("a prefill");
        Self { model, url, tokens, kv, statistics }
    }

    /// Stores and loads the tokens that a policy keeps, with a lossless profile for every class.
    async fn there_and_back(&self, policy: &dyn TokenPolicy, classes_expected: usize) {
        let spec = self.model.spec();
        let keep = Keep::choose(&self.statistics, policy, &BUDGETS);
        let thinning = Thinning { method: policy.name().to_owned(), parameters: "a test".to_owned() };
        let classes = ThinClass::of(spec, policy);
        assert_eq!(classes.len(), classes_expected);
        let exact = |class: &ThinClass| {
            let (spec, kept) = (class.spec(spec, &thinning), keep.head(class.layer, class.heads.start));
            let tokens = class.slots(&self.tokens, kept);
            let kv = KvBuffer::from_source(&spec, tokens.len(), &class.rows(&self.kv, kept));
            let contexts = [TrainingContext { first_position: 0, tokens, kv }];
            Arc::new(train(&spec, &contexts, &Recipe::Exact, 0.01, &mut |_, _| ()).expect("a profile"))
        };
        let profiles = classes.iter().map(exact).collect();
        let namespace = "thinned".parse().expect("a name");
        let store = ThinnedStore::connect(&self.url, (spec, &thinning), &namespace, classes, profiles);
        let store = store.await.expect("it is there");

        let mut loaded = self.untouched();
        let before = store.load(&self.tokens, Level(0), &mut loaded).await.expect("an answer");
        assert_eq!(before, None, "nothing is stored yet");
        let sent = store.store(&self.tokens, &self.kv, &keep).await.expect("it takes them");
        assert_eq!(store.store(&self.tokens, &self.kv, &keep).await.expect("still there"), 0, "sent once");
        let found = store.load(&self.tokens, Level(0), &mut loaded).await.expect("an answer");
        let (positions, bytes) = found.expect("all classes are stored");
        assert_eq!(positions, keep, "the same positions");
        assert!(bytes > 0 && bytes <= sent, "{bytes} of {sent}");
        self.compare(&keep, &loaded);
        let longer = [&self.tokens[..], &[1]].concat();
        let other = store.load(&longer, Level(0), &mut loaded).await.expect("an answer");
        assert_eq!(other, None, "another context, even a longer one, is another's");
    }

    fn untouched(&self) -> KvBuffer {
        let mut kv = KvBuffer::new(self.model.spec(), CONTEXT);
        for (layer, plane) in (0..BUDGETS.len()).flat_map(|layer| Plane::ALL.map(|plane| (layer, plane))) {
            (0..kv.heads(layer, plane)).for_each(|head| kv.rows_mut(layer, plane, head).fill(UNTOUCHED));
        }
        kv
    }

    /// Kept rows have the cache's bits, all others are as they were.
    fn compare(&self, keep: &Keep, loaded: &KvBuffer) {
        let exact = KvBuffer::from_source(self.model.spec(), CONTEXT, &self.kv);
        for (layer, plane) in (0..BUDGETS.len()).flat_map(|layer| Plane::ALL.map(|plane| (layer, plane))) {
            for head in 0..exact.heads(layer, plane) {
                let kept = keep.head(layer, head);
                assert_eq!(kept.len(), BUDGETS[layer]);
                let (exact, loaded) = (exact.rows(layer, plane, head), loaded.rows(layer, plane, head));
                let width = exact.len() / CONTEXT;
                let rows = exact.chunks_exact(width).zip(loaded.chunks_exact(width)).enumerate();
                for (token, (exact, loaded)) in rows {
                    let same = exact.iter().zip(loaded).all(|(a, b)| a.to_bits() == b.to_bits());
                    let untouched = loaded.iter().all(|value| *value == UNTOUCHED);
                    let right = if kept.binary_search(&token).is_ok() { same } else { untouched };
                    assert!(right, "layer {layer}, {plane:?}, head {head}, token {token}");
                }
            }
        }
    }
}

#[tokio::test]
async fn thinned_caches_come_back_bit_for_bit() {
    let directory = TempDir::new().expect("a directory");
    let store = format!("file://{}/store", directory.path().display()).parse().expect("a URL");
    let service = Service::start(StoreConfig::new(store), directory.path()).await;
    let bench = Bench::new(&service);
    // A list of tokens per layer: eight objects. A list a head: sixteen.
    bench.there_and_back(&StreamingLlm { sinks: 4 }, 8).await;
    bench.there_and_back(&H2o { recent_share: 0.5 }, 16).await;
    service.stop().await;
}
