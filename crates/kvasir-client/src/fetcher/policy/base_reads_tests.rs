use super::*;
use crate::fetcher::{ByteRate, ChunkStatus, policy::split_tests::Load};

const MS: Duration = Duration::from_millis(1);

/// Of four bases of 10 ms, those of `reading` share the link, and those at the back have begun to flow. `texts` are the GPU's.
fn paused(reading: &[usize], texts: Vec<usize>, left: Duration) -> Option<PolicyStep> {
    let mut load = Load::new(4, 200 * MS);
    for &i in reading {
        load.chunks[i].status = ChunkStatus::Fetching { level: Level::BASE };
        load.own_rates[i] = ByteRate::new(1e8).filter(|_| i > 1);
    }
    let view = crate::fetcher::PolicyView { first_byte: 5 * MS, ..load.view(500 * MS - left) };
    let plan = Forecast::of(&view, Duration::ZERO);
    BaseReads::new().stopped(&plan, &Split::given(texts))
}

#[test]
fn of_equal_reads_the_one_that_the_gpu_reaches_first_waits() {
    let paused = |reading: &[usize], texts| match paused(reading, texts, 400 * MS) {
        Some(PolicyStep::Pause { chunk }) => Some(chunk),
        _ => None,
    };
    assert_eq!(paused(&[0, 1, 2, 3], vec![]), Some(0));
    assert_eq!(paused(&[0, 1, 2, 3], vec![1]), Some(1), "first what the GPU computes");
    assert_eq!(paused(&[0, 2, 3], vec![1]), Some(2), "the GPU waits for the first one");
}

#[test]
fn a_base_that_the_gpu_computes_is_read_only_if_it_delays_no_other() {
    let mut load = Load::new(4, 200 * MS);
    load.chunks[0].status = ChunkStatus::Fetching { level: Level::BASE };
    let next = |left: Duration| {
        let view = crate::fetcher::PolicyView { first_byte: 5 * MS, ..load.view(500 * MS - left) };
        let plan = Forecast::of(&view, Duration::ZERO);
        BaseReads::next(&plan, &Split::given(vec![1, 2, 3]))
    };
    assert_eq!((next(25 * MS), next(15 * MS)), (Some(3), None), "10 ms in flight and 10 more");
}
