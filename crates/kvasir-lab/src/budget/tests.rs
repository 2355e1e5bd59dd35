use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use kvasir_engine::{Model, PagedKv};

static MODEL: LazyLock<Model> = LazyLock::new(|| Model::kvasir_tiny().expect("embedded model"));

fn prefix() -> (PagedKv, PrefixStatistics, Vec<u32>) {
    let tokens =
        MODEL.tokenizer().encode(include_str!("../../../kvasir-engine/tests/data/harbour.txt")).unwrap();
    let (before, suffix) = tokens.split_at(200);
    let mut kv = MODEL.new_kv().unwrap();
    let statistics = PrefixStatistics::gather(&MODEL, &mut kv, before, 32).unwrap();
    (kv, statistics, suffix[..40].to_vec())
}

fn policies() -> [Box<dyn TokenPolicy>; 4] {
    [
        Box::new(SlidingWindow),
        Box::new(StreamingLlm { sinks: 4 }),
        Box::new(H2o { recent_share: 0.5 }),
        Box::new(Scissorhands { recent_share: 0.5 }),
    ]
}

#[test]
fn attention_is_all_accounted_for() {
    let (_, statistics, _) = prefix();
    for (layer, head) in (0..8).flat_map(|l| [(l, 0), (l, 1)]) {
        let view = statistics.head(layer, head);
        let total: f32 = view.received.iter().sum();
        // Two query heads share a KV head, every query gives out 1.
        assert!((total - 2.0 * 200.0).abs() < 0.01, "layer {layer}: {total}");
        assert!(view.distant.iter().zip(view.received).all(|(d, r)| d <= r));
        assert!(view.unimportant.iter().all(|&n| n <= 2.0 * 32.0));
    }
    assert!(statistics.similarities().iter().all(|s| (-1.0..=1.0).contains(s)));
}

#[test]
fn a_full_budget_changes_nothing_and_less_costs_more() {
    let (kv, statistics, suffix) = prefix();
    let exact = MODEL.logits(&mut kv.fork(200).unwrap(), &suffix).unwrap();
    let kl = |policy: &dyn TokenPolicy, budget: usize| {
        let keep = Keep::choose(&statistics, policy, &[budget; 8]);
        assert!(keep.share() <= budget as f64 / 200.0 + 1e-9);
        let mut thinned = Thinned(&keep);
        let lossy = MODEL.logits_observed(&mut kv.fork(200).unwrap(), &suffix, &mut thinned).unwrap();
        let mut samples = kvasir_engine::quality::Samples::default();
        samples.add(&exact, &lossy, &suffix);
        samples.summary().kl.mean
    };
    for policy in policies() {
        assert_eq!(kl(&*policy, 200), 0.0, "{}", policy.name());
        let (half, tenth) = (kl(&*policy, 100), kl(&*policy, 20));
        assert!(0.0 < half && half < tenth, "{}: {half} {tenth}", policy.name());
    }
    let window = kl(&SlidingWindow, 20);
    assert!(kl(&H2o { recent_share: 0.5 }, 20) < window, "heavy hitters beat the plain window");
}

#[test]
fn fastgen_keeps_the_attention_it_promises() {
    let (_, statistics, _) = prefix();
    let punctuation =
        [",", ".", ";", "\""].iter().flat_map(|p| MODEL.tokenizer().encode(p).unwrap()).collect();
    let policy = FastGen { recovery: 0.9, ratio: 0.3, sinks: 4, punctuation };
    let keep = Keep::choose(&statistics, &policy, &[200; 8]);
    let shares: Vec<usize> = (0..8).flat_map(|l| [keep.head(l, 0).len(), keep.head(l, 1).len()]).collect();
    assert!(shares.iter().any(|&n| n < 200), "some head is thinned: {shares:?}");
    let all = FastGen { recovery: 1.1, ..policy };
    assert_eq!(Keep::choose(&statistics, &all, &[200; 8]).share(), 1.0, "what cannot be recovered is kept");
}

#[test]
fn the_papers_example_of_squeezing() {
    // 32 layers, 18 important, budget 1000, p = 0.3: 300 for the others and 1,544 for the important ones.
    let similarities: Vec<f64> =
        (0..32).map(|l| if l < 18 { 0.5 + 0.01 * f64::from(l % 2) } else { 0.95 }).collect();
    let budgets = squeeze(&similarities, 1000, 0.3);
    assert!(
        budgets[..18].iter().all(|&b| b == 1544) && budgets[18..].iter().all(|&b| b == 300),
        "{budgets:?}"
    );
    assert!(squeeze(&similarities, 1000, 1.0).iter().all(|&b| b == 1000));
    assert_eq!(squeeze(&[0.7; 4], 10, 0.3).iter().sum::<usize>(), 40, "nothing to tell layers apart by");
}

#[test]
fn what_is_easy_to_predict_goes_first() {
    let text = include_str!("../../../kvasir-engine/tests/data/harbour.txt");
    let tokens = &MODEL.tokenizer().encode(text).unwrap()[..200];
    let compressor = SurprisalCompressor { model: &MODEL };
    let kept = compressor.compress(tokens, 0.5).unwrap();
    assert_eq!(kept.len(), 100);
    let mut rest = tokens.iter();
    assert!(kept.iter().all(|token| rest.any(|t| t == token)), "a subsequence of the text");
    let the = MODEL.tokenizer().encode(" the").unwrap()[0];
    let share = |tokens: &[u32]| tokens.iter().filter(|&&t| t == the).count() as f64 / tokens.len() as f64;
    assert!(share(&kept) < share(tokens), "\" the\" is easy: {} {}", share(&kept), share(tokens));
    assert_eq!(compressor.compress(tokens, 1.0).unwrap(), tokens);
}

proptest! {
    #[test]
    fn policies_keep_to_their_budget(scores in prop::collection::vec(0f32..10.0, 1..60), budget in 0usize..80) {
        let ids = vec![0; scores.len()];
        let view = HeadView { token_ids: &ids, received: &scores, distant: &scores, unimportant: &scores };
        for policy in policies() {
            let kept = policy.keep(&view, budget);
            prop_assert_eq!(kept.len(), budget.min(scores.len()), "{}", policy.name());
            prop_assert!(kept.is_sorted() && kept.windows(2).all(|w| w[0] < w[1]));
            prop_assert!(kept.iter().all(|&t| t < scores.len()));
        }
    }

    #[test]
    fn squeezing_never_spends_more(similarities in prop::collection::vec(-1f64..1.0, 1..40), budget in 0usize..500, p in 0.0f64..1.0) {
        let budgets = squeeze(&similarities, budget, p);
        prop_assert!(budgets.iter().sum::<usize>() <= budget * similarities.len());
        prop_assert_eq!(budgets.len(), similarities.len());
    }
}
