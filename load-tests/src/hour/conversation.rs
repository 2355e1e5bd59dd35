//! The conversations, run in addition to the judged replicas: the trace through the client crate on three
//! replicas, with faults from a seed.

use anyhow::{Context as _, Result};
use kvasir_tests::faulty::Dice;

use super::CONVERSATION;
use crate::{
    scenario::{
        fault::{Fault, FaultSpec},
        spec::Scenario,
    },
    traffic::arrivals::Arrivals,
};

const REPLICAS: usize = 3;
/// Seconds from the end of a fault to the next, at least and at most.
const PAUSE_SECONDS: (f64, f64) = (5.0, 25.0);
/// Seconds without faults before the end, in which the stored data must be found.
const CALM_SECONDS: f64 = 15.0;

/// A token's cache is 1/512 of an 8B model's, so that an hour's data fits on a small disk.
const SCENARIO: &str = r#"
name = "conversation"
about = "Conversations through the client crate, on three replicas whose store and processes fail every few seconds. What is loaded is checked row by row."
seconds = 3600
smoke = { seconds = 3 }

[gates]
"conversation.availability" = { min = 0.5 }
"all.checked" = { min = 1 }

[service]
replicas = 3
store = "s3"
settings = ["hot.memory=64MiB", "hot.disk=256MiB", "gc.interval=10s", "journal.interval=1s"]
link_delay_ms = 2
link_mbps = 2000

[[load]]
name = "conversation"
op = "prompt"
arrivals = { trace = { speed = 1 } }
at_once = 256
patience_seconds = 120
trace = { format = "mooncake", block_tokens = 512, layers = 1 }
"#;

pub(super) fn scenario(seconds: f64, speed: f64, seed: u64) -> Result<Scenario> {
    let mut scenario: Scenario =
        toml::from_str(SCENARIO).with_context(|| format!("the scenario {CONVERSATION}"))?;
    (scenario.seconds, scenario.seed) = (seconds, seed);
    for load in &mut scenario.load {
        load.arrivals = Arrivals::Trace { speed };
    }
    scenario.fault = faults(seconds, &mut Dice::new(seed));
    Ok(scenario)
}

fn faults(seconds: f64, dice: &mut Dice) -> Vec<FaultSpec> {
    let between = |from: f64, to: f64, dice: &mut Dice| from + (to - from) * dice.below(1_000) as f64 / 1e3;
    let (mut faults, mut at) = (Vec::new(), 10.0);
    loop {
        let lasts = between(1.0, 6.0, dice);
        if at + lasts + CALM_SECONDS > seconds {
            return faults;
        }
        let replica = dice.below(REPLICAS);
        let what = match dice.below(6) {
            0 => Fault::Away,
            1 => Fault::Errors(0.2),
            2 => Fault::BrownOut,
            3 => Fault::Slower(10.0),
            4 => Fault::LoseCache { replica },
            _ => Fault::Kill { replica },
        };
        faults.push(FaultSpec { at, lasts, what });
        at += lasts + between(PAUSE_SECONDS.0, PAUSE_SECONDS.1, dice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_schedule_and_ends_before_the_hour() {
        let of = |seed| toml::to_string(&scenario(600.0, 1.0, seed).unwrap()).unwrap();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let scenario: Scenario = toml::from_str(&of(1)).unwrap();
        let last = scenario.fault.last().unwrap();
        assert!(scenario.gates.contains_key("all.checked"));
        assert!(scenario.fault.len() > 15 && last.at + last.lasts < 600.0 - CALM_SECONDS);
    }
}
