//! The nanoseconds of an eviction in each policy, at growing numbers of entries:
//! `cargo run --release -p kvasir-lab --example eviction_cost -- 10000 100000 1000000`

use std::{
    io::Write,
    time::{Duration, Instant},
};

use kvasir_eviction::{Access, ClassId, ClassTable, Moment, RequestClass, TurnBucket};
use kvasir_lab::eviction::ComparedPolicy;

/// Blocks per request.
const BLOCKS: u64 = 64;
/// Requests after the tier is full: enough that there are all queues that a policy allows.
const REQUESTS: u64 = 10_000;
/// Classes of requests: tenants by turn.
const CLASSES: u64 = 48;
/// Evictions timed together: reading a clock costs as much as one.
const TIMED: u32 = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    for count in std::env::args().skip(1) {
        let entries: u64 = count.parse()?;
        for kind in ComparedPolicy::ALL.into_iter().filter(is_distinct) {
            let mut times = run(kind, entries);
            times.sort_unstable();
            let nanos = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(TIMED);
            let mean = nanos(times.iter().sum::<Duration>()) / times.len() as f64;
            let at = |share: f64| nanos(times[((times.len() - 1) as f64 * share) as usize]);
            writeln!(
                out,
                "{entries:>8} entries  {:<22} mean {mean:.0} ns  median {:.0}  99 % {:.0}  worst {:.0}",
                kind.name(),
                at(0.5),
                at(0.99),
                at(1.0)
            )?;
        }
    }
    Ok(())
}

/// Whether a policy is code of its own: others differ from one by the order or the worth of blocks, which are
/// the same for all here.
fn is_distinct(kind: &ComparedPolicy) -> bool {
    !kind.is_leaf_first() && *kind != ComparedPolicy::AdaptiveCost
}

/// Fills a tier of `entries`, then times the evictions that further requests cause.
fn run(kind: ComparedPolicy, entries: u64) -> Vec<Duration> {
    let mut table = ClassTable::default();
    let classes: Vec<ClassId> = (0..CLASSES)
        .map(|class| {
            let turn = TurnBucket::of(1 + (class % 6) as u32 * 3);
            table.intern(&RequestClass { tenant: format!("t{}", class / 6), kind: String::new(), turn })
        })
        .collect();
    let mut policy = kind.build::<u64>(entries);
    let (mut times, mut random, mut next) = (Vec::new(), 1u64, 0u64);
    let mut request = 0;
    while next < entries + REQUESTS * BLOCKS {
        request += 1;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let now = Moment::from_millis(request * 10);
        // One in four continues or repeats what came before, skewed to what is recent.
        let first = if random >> 62 == 0 && next > 0 {
            let made = next / BLOCKS;
            (made - 1 - ((random >> 20) % 64).pow(2) % made) * BLOCKS
        } else {
            next
        };
        for offset in 0..BLOCKS {
            let key = first + offset;
            let access = Access::new(now, classes[(first / BLOCKS % CLASSES) as usize])
                .at(offset as u32, (offset > 0).then(|| key - 1))
                .paced(Some((random % 300) as f32))
                .worth(0.01);
            if !policy.touch(&key, &access) {
                policy.insert(key, &access);
            }
        }
        next = next.max(first + BLOCKS);
        while policy.bytes() >= entries + u64::from(TIMED) {
            let start = Instant::now();
            (0..TIMED).for_each(|_| {
                let _ = std::hint::black_box(policy.evict(now));
            });
            times.push(start.elapsed());
        }
    }
    times
}
