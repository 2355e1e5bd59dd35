//! Faults of replicas and of their connection to the store.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kvasir_tests::{
    faulty::Dice,
    proxy::{FaultProxy, Toxic},
};
use tokio::time::sleep;

use super::{
    group::{Group, Member, REPLICAS, key},
    settings::LONG_AWAY,
};

/// Of a thousand requests to the store, while they go wrong.
const FAULTS: usize = 150;
/// Bytes of chunks are not changed: flipped bytes concern readers with checks, which are not judged here.
const TOXICS: &[Toxic] = &[
    Toxic::SlowDown,
    Toxic::ResetBefore,
    Toxic::ResetUpload,
    Toxic::ResetMidBody,
    Toxic::Stall,
    Toxic::Ambiguous,
    Toxic::Narrow,
];
/// After faults: the longest pause of a breaker that was open this briefly, running requests, of which one that stalls takes
/// 5 s until its next attempt, and cached state.
pub(super) const RECOVERY: Duration = Duration::from_secs(11);

impl Group<'_> {
    /// How often each mishap was.
    pub(super) fn mishaps(&self) -> BTreeMap<&'static str, u64> {
        self.mishaps.borrow().clone()
    }

    /// Mishaps, one after the other, for `time`.
    pub(super) async fn suffer(&self, dice: &mut Dice, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            let pause = Duration::from_millis(300 + dice.below(2_000) as u64);
            sleep(pause.min(time.saturating_sub(begun.elapsed()))).await;
            let what = self.mishap(dice).await;
            *self.mishaps.borrow_mut().entry(what).or_default() += 1;
        }
    }

    /// Waits until every replica reaches the store.
    pub(super) async fn recover(&self) {
        let over = self.troubles.borrow().iter().map(|(_, until)| *until).max();
        if let Some(over) = over {
            tokio::time::sleep_until(over.into()).await;
        }
    }

    async fn mishap(&self, dice: &mut Dice) -> &'static str {
        if let Some(file) = self.keys.as_ref().filter(|_| dice.chance(200)) {
            return self.change_keys(file, dice).await;
        }
        if let Some(proxy) = self.proxy().filter(|_| dice.chance(150)) {
            return self.trouble(proxy, dice).await;
        }
        let place = dice.below(REPLICAS);
        match dice.below(12) {
            0 | 1 => {
                let disk = self.kill(place);
                self.begin(place, disk).await;
                "killed"
            }
            2 | 3 => {
                self.kill(place);
                self.begin(place, self.empty_disk()).await;
                "killed and wiped"
            }
            4 | 5 => {
                self.drain(place).await;
                "drained"
            }
            6 => {
                for place in 0..REPLICAS {
                    self.drain(place).await;
                }
                "rolling restart"
            }
            _ => {
                let disk = self.kill(place);
                self.away.borrow_mut().push((disk, Instant::now()));
                let long_away = |(_, since): &mut (PathBuf, Instant)| since.elapsed() > LONG_AWAY;
                let back = self.away.borrow_mut().extract_if(.., long_away).next();
                let what = if back.is_some() { "back after the logs' retention" } else { "gone for long" };
                self.begin(place, back.map_or_else(|| self.empty_disk(), |(disk, _)| disk)).await;
                what
            }
        }
    }

    /// Adds a wrapping key, or takes out the old ones once no tenant key needs them. Replicas take it in within seconds, and one
    /// after the other: some still wrap under the key before, and some start without it.
    async fn change_keys(&self, file: &Path, dice: &mut Dice) -> &'static str {
        let (text, made) = (std::fs::read_to_string(file).expect("reads"), self.keys_made.get());
        let has_old = text.matches("[[key]]").count() > 1;
        let (text, what) = if has_old && dice.below(2) == 0 && self.is_wrapped_by(made - 1).await {
            (key(made - 1), "old wrapping keys removed")
        } else {
            self.keys_made.set(made + 1);
            (text + &key(made), "wrapping key rotated")
        };
        // Replaced as a whole: whoever read a part of it would have fewer keys.
        let new = file.with_extension("new");
        std::fs::write(&new, text).expect("writes");
        std::fs::rename(&new, file).expect("renames");
        what
    }

    pub(super) fn kill(&self, place: usize) -> PathBuf {
        let Member { process, disk, .. } = self.end(place);
        process.kill();
        self.kills.set(self.kills.get() + 1);
        disk
    }

    /// The store is away, or requests to it go wrong, for up to three seconds.
    async fn trouble(&self, proxy: &FaultProxy, dice: &mut Dice) -> &'static str {
        let time = Duration::from_millis(500 + dice.below(2_500) as u64);
        let begun = Instant::now();
        self.troubles.borrow_mut().push((begun, begun + time + RECOVERY));
        let is_away = dice.below(2) == 0;
        if is_away {
            proxy.away(true);
        } else {
            proxy.set_among(FAULTS, TOXICS);
        }
        sleep(time).await;
        proxy.away(false);
        // A machine that is busy is late.
        if let Some((_, until)) = self.troubles.borrow_mut().last_mut() {
            *until = Instant::now() + RECOVERY;
        }
        if is_away { "store away" } else { "store in trouble" }
    }
}
