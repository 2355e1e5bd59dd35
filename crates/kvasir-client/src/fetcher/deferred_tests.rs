//! Loads whose engine computes after them.

use std::collections::BTreeMap;

use super::{
    tests::{config, ms, plan, policy},
    *,
};

/// The engine computes after the load, and the rate is known from an earlier one: four chunks of 25 ms. Before the first
/// byte is due, its absence is no evidence of a slow link.
#[test]
fn nothing_is_left_to_the_engine_before_the_first_byte_is_due() {
    let sizes = vec![vec![2_500_000]; 4];
    let plan = FetchPlan { first_byte: Some(ms(600)), ..plan(&sizes, ms(1000), Some(800.0)) };
    let config = FetcherConfig { text_mode: TextMode::Deferred, ..config(1e-4) };
    let mut fetcher = Fetcher::new(plan, policy(2), config).unwrap();
    let (mut actions, mut looks) = (fetcher.on(FetcherEvent::Start, ms(0)), 0);
    while let Some(at) = actions.iter().find_map(|action| match action {
        FetcherAction::WakeAt(at) => Some(*at).filter(|at| *at < ms(600)),
        _ => None,
    }) {
        actions = fetcher.on(FetcherEvent::Tick, at);
        looks += 1;
        let computes = |action: &FetcherAction| matches!(action, FetcherAction::Recompute { .. });
        assert!(!actions.iter().any(computes), "{at:?}: {actions:?}");
    }
    assert!(looks > 5, "{looks}");
}

/// The engine computes after the load, 100 ms a chunk; three chunks take 200 ms each on the link, of 850 in all. As long as
/// the link has hardly been measured, a cautious plan leaves one to the engine. It is read last, and by then it fits.
#[test]
fn what_is_left_to_the_engine_is_decided_last() {
    let sizes = vec![vec![20_000_000]; 3];
    let plan = plan(&sizes, ms(850), Some(800.0));
    let mut config = FetcherConfig { text_mode: TextMode::Deferred, ..config(0.1 / 1536.0) };
    (0..20).for_each(|_| config.recompute.observe(plan.chunks[0].tokens, ms(100)));
    let mut fetcher = Fetcher::new(plan, policy(2), config).unwrap();
    let mut open = BTreeMap::new();
    let (mut texts, mut actions) = (Vec::new(), fetcher.on(FetcherEvent::Start, ms(0)));
    for t in (2..2_000).step_by(2) {
        for action in std::mem::take(&mut actions) {
            match action {
                FetcherAction::Fetch { request, start, end, .. } => {
                    open.insert(request, end - start);
                }
                FetcherAction::Cancel { request } => {
                    open.remove(&request);
                }
                FetcherAction::Recompute { chunk } => {
                    texts.push((chunk, t));
                    actions.extend(fetcher.on(FetcherEvent::Recomputed { chunk, took: None }, ms(t)));
                }
                FetcherAction::Decode { chunk, .. } => {
                    actions.extend(fetcher.on(FetcherEvent::Decoded { chunk, took: ms(1) }, ms(t)));
                }
                _ => {}
            }
        }
        let Some((&request, left)) = open.iter_mut().next() else { continue };
        *left -= 200_000;
        let ended = *left == 0;
        actions.extend(fetcher.on(FetcherEvent::Bytes { request, bytes: 200_000 }, ms(t)));
        if ended {
            open.remove(&request);
            actions.extend(fetcher.on(FetcherEvent::Completed { request }, ms(t)));
        }
    }
    assert!(fetcher.is_done() && fetcher.chunks().iter().all(|chunk| chunk.level().is_some()));
    assert_eq!(texts, []);
}
