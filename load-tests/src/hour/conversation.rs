//! The conversations, run in addition to the judged replicas: the trace through the client crate on three
//! replicas, with faults from a seed. Beside their tenant another one stores and reads over plain HTTP; the seed
//! says whose data is sealed, so that both kinds are in one bucket.

use std::path::Path;

use anyhow::{Context as _, Result};
use kvasir_tests::faulty::Dice;

use super::{
    CONVERSATION,
    survivor::{self, SURVIVOR},
};
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
about = "Conversations through the client crate, and another tenant beside them, on three replicas whose store and processes fail every few seconds; one of the replicas lives all the time. What is loaded is checked row by row, what is read byte by byte."
seconds = 3600
smoke = { seconds = 3 }

[gates]
"conversation.availability" = { min = 0.5 }
"all.checked" = { min = 1 }

[service]
replicas = 3
store = "s3"
tenants = 2
settings = ["gc.interval=10s", "journal.interval=1s"]
link_delay_ms = 2
link_mbps = 2000

[[load]]
name = "conversation"
op = "prompt"
tenants = "first"
arrivals = { trace = { speed = 1 } }
at_once = 256
patience_seconds = 120
trace = { format = "mooncake", block_tokens = 512, layers = 1 }

[[load]]
name = "neighbour-stores"
op = "store"
tenants = "others"
arrivals = { poisson = 0.5 }
bytes = 100_000

[[load]]
name = "neighbour-reads"
op = "read"
tenants = "others"
arrivals = { poisson = 2 }
from_second = 5
"#;

/// The run, with the file of [`keys`] at this path.
pub(super) fn scenario(seconds: f64, speed: f64, seed: u64, keys_file: &Path) -> Result<Scenario> {
    let mut scenario: Scenario =
        toml::from_str(SCENARIO).with_context(|| format!("the scenario {CONVERSATION}"))?;
    (scenario.seconds, scenario.seed) = (seconds, seed);
    for load in scenario.load.iter_mut().filter(|load| load.trace.is_some()) {
        load.arrivals = Arrivals::Trace { speed };
    }
    scenario.service.settings.extend(survivor::settings());
    scenario.service.settings.push(format!("encryption.keys_file={}", keys_file.display()));
    scenario.fault = faults(seconds, &mut Dice::new(seed));
    Ok(scenario)
}

/// The key of the tenant that is sealed: the first one's are the conversations.
pub(super) fn keys(seed: u64) -> String {
    format!("[[key]]\ntenant = \"t{}\"\nid = \"k0\"\nkey = \"{:064x}\"\n", seed % 2, 1)
}

fn faults(seconds: f64, dice: &mut Dice) -> Vec<FaultSpec> {
    let between = |from: f64, to: f64, dice: &mut Dice| from + (to - from) * dice.below(1_000) as f64 / 1e3;
    let (mut faults, mut at) = (Vec::new(), 10.0);
    loop {
        let lasts = between(1.0, 6.0, dice);
        if at + lasts + CALM_SECONDS > seconds {
            return faults;
        }
        let replica = SURVIVOR + 1 + dice.below(REPLICAS - 1);
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
    fn a_seed_is_one_schedule_that_ends_before_the_hour_and_spares_one_replica() {
        let of = |seed| {
            toml::to_string(&scenario(600.0, 1.0, seed, Path::new("/out/keys.toml")).unwrap()).unwrap()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let scenario: Scenario = toml::from_str(&of(1)).unwrap();
        let last = scenario.fault.last().unwrap();
        assert!(scenario.gates.contains_key("all.checked"));
        assert!(scenario.fault.len() > 15 && last.at + last.lasts < 600.0 - CALM_SECONDS);
        let ended = |fault: &FaultSpec| match fault.what {
            Fault::Kill { replica } | Fault::LoseCache { replica } => Some(replica),
            _ => None,
        };
        let ended: Vec<usize> = scenario.fault.iter().filter_map(ended).collect();
        assert!([1, 2].iter().all(|replica| ended.contains(replica)) && !ended.contains(&SURVIVOR));
    }

    #[test]
    fn the_seed_seals_one_of_the_two_tenants() {
        assert!(keys(4).contains("\"t0\"") && keys(5).contains("\"t1\""));
        let scenario = scenario(60.0, 1.0, 1, Path::new("/out/keys.toml")).unwrap();
        assert_eq!(scenario.service.tenants, 2);
        assert!(scenario.service.settings.contains(&"encryption.keys_file=/out/keys.toml".to_owned()));
        assert!(scenario.load.iter().all(|load| load.trace.is_some() == (load.name == CONVERSATION)));
        assert_eq!(scenario.load[1].arrivals, Arrivals::Poisson(0.5), "only the trace has a speed");
    }
}
