//! The latest trainings of profiles that were reported to this replica, by tenant and model, in memory.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
};

use kvasir_api::{ReportedTraining, TRAININGS_KEPT_MAX, TrainingRecord};
use kvasir_types::{ModelId, Name};
use parking_lot::Mutex;

use crate::{limits, wall_clock::unix_ms};

/// The trainings of each model of a tenant, oldest first.
type Trainings = HashMap<(Name, ModelId), VecDeque<ReportedTraining>>;

/// The latest trainings of the models of all tenants, bounded.
#[derive(Debug, Default)]
pub(crate) struct TrainingLog(Mutex<Trainings>);

impl TrainingLog {
    /// Keeps a training. If there are too many, drops the model's oldest. If there are too many models, drops one.
    pub(crate) fn keep(&self, tenant: &Name, model_id: ModelId, record: TrainingRecord) {
        let key = (tenant.clone(), model_id);
        let mut log = self.0.lock();
        if log.len() >= limits::TRAINING_MODELS_MAX && !log.contains_key(&key) {
            let displaced = displaced(&log, tenant);
            displaced.and_then(|key| log.remove(&key));
        }
        let trainings = log.entry(key).or_default();
        trainings.push_back(ReportedTraining::new(record, unix_ms()));
        if trainings.len() > TRAININGS_KEPT_MAX {
            trainings.pop_front();
        }
    }

    /// The last trainings of a model, newest first.
    pub(crate) fn last(&self, tenant: &Name, model_id: ModelId) -> Vec<ReportedTraining> {
        let log = self.0.lock();
        log.get(&(tenant.clone(), model_id)).into_iter().flatten().rev().cloned().collect()
    }
}

/// The model that makes room for another one of the tenant `by`: of the tenant that has most, the one with the oldest latest
/// report. So no tenant that has fewer models loses one to a tenant that has more.
fn displaced(log: &Trainings, by: &Name) -> Option<(Name, ModelId)> {
    let mut models = HashMap::<&Name, usize>::from([(by, 1)]);
    log.keys().for_each(|(tenant, _)| *models.entry(tenant).or_default() += 1);
    let of_tenant = |tenant: &Name| models.get(tenant).copied();
    let last = |of: &VecDeque<ReportedTraining>| of.back().map(|training| training.received_at_ms);
    let first_to_go = log.iter().min_by_key(|((tenant, _), of)| (Reverse(of_tenant(tenant)), last(of)));
    first_to_go.map(|(key, _)| key.clone())
}

#[cfg(test)]
mod tests {
    use kvasir_api::TrainingOutcome;

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn record(sampled_tokens: u64) -> TrainingRecord {
        TrainingRecord {
            outcome: TrainingOutcome::Refused,
            reason: "it needs 97 % of the bytes of the profile in force".to_owned(),
            sampled_chunks: 1,
            sampled_tokens,
            in_force: [1; 32].into(),
            trained: Some([2; 32].into()),
            held_out_chunks: 1,
            in_force_bits: Some(5.9),
            trained_bits: Some(5.7),
        }
    }

    fn tokens(log: &TrainingLog, tenant: &str, model: u8) -> Vec<u64> {
        log.last(&name(tenant), [model; 32].into()).iter().map(|training| training.sampled_tokens).collect()
    }

    #[test]
    fn a_model_has_its_tenants_last_trainings_newest_first() {
        let log = TrainingLog::default();
        for n in 0..TRAININGS_KEPT_MAX as u64 + 2 {
            log.keep(&name("a"), [1; 32].into(), record(n));
        }
        log.keep(&name("a"), [2; 32].into(), record(50));
        log.keep(&name("b"), [1; 32].into(), record(60));
        assert_eq!(tokens(&log, "a", 1), [9, 8, 7, 6, 5, 4, 3, 2]);
        assert_eq!((tokens(&log, "a", 2), tokens(&log, "b", 1)), (vec![50], vec![60]));
        assert!(tokens(&log, "b", 2).is_empty());
    }

    #[test]
    fn the_models_that_are_kept_are_bounded_and_a_tenant_with_many_displaces_its_own() {
        let log = TrainingLog::default();
        log.keep(&name("b"), [1; 32].into(), record(60));
        for n in 0..2 * limits::TRAINING_MODELS_MAX as u64 {
            let mut model = [0; 32];
            model[..8].copy_from_slice(&n.to_le_bytes());
            log.keep(&name("a"), model.into(), record(n));
        }
        log.keep(&name("b"), [2; 32].into(), record(61));
        assert_eq!(log.0.lock().len(), limits::TRAINING_MODELS_MAX);
        assert_eq!((tokens(&log, "b", 1), tokens(&log, "b", 2)), (vec![60], vec![61]));
    }

    #[test]
    fn among_tenants_with_as_many_models_the_oldest_report_makes_room() {
        let log = TrainingLog::default();
        for n in 0..limits::TRAINING_MODELS_MAX {
            log.keep(&name(&format!("t{n}")), [1; 32].into(), record(1));
        }
        let of_old = (name("t5"), ModelId::from([1; 32]));
        log.0.lock().get_mut(&of_old).expect("it is there")[0].received_at_ms = 0;
        log.keep(&name("new"), [1; 32].into(), record(2));
        assert_eq!((tokens(&log, "t5", 1), tokens(&log, "new", 1)), (vec![], vec![2]));
        assert_eq!(log.0.lock().len(), limits::TRAINING_MODELS_MAX);
    }
}
