//! Models, their profiles and trainings, and roots of namespaces.

use std::collections::{BTreeMap, BTreeSet};

use kvasir_api::{
    ModelList, NamespaceResponse, ProfileLevels, ProfileList, RegisteredModel, TRAININGS_KEPT_MAX,
    TrainingList,
};
use kvasir_tests::{chunks, faulty::Dice};
use kvasir_types::{ModelId, ModelSpec, ProfileHash, RootHash};
use reqwest::StatusCode;
use serde_json::json;

use super::{Step, json, nothing};

const MODELS: usize = 3;
/// Namespaces that no chunk is in, so that their salts may rotate.
const NAMESPACES: [&str; 2] = ["a", "b"];

fn spec(n: usize) -> ModelSpec {
    ModelSpec { revision: format!("of sequences {n}"), ..chunks::spec() }
}

#[derive(Default)]
struct OfTenant {
    models: BTreeMap<ModelId, ModelSpec>,
    profiles: BTreeMap<ModelId, BTreeSet<Vec<u8>>>,
    /// The steps at which trainings were reported.
    trainings: BTreeMap<ModelId, Vec<usize>>,
    roots: BTreeMap<(String, ModelId), RootHash>,
}

/// Of the first tenant and of the stranger.
pub(super) struct Registry([OfTenant; 2]);

impl Registry {
    pub(super) fn new() -> Self {
        Self([OfTenant::default(), OfTenant::default()])
    }

    pub(super) async fn step(&mut self, step: &Step<'_>, dice: &mut Dice) {
        let (spec, profile) = (spec(dice.below(MODELS)), format!("profile {}", dice.below(2)).into_bytes());
        let model = if step.is_random { ModelId::from([step.at as u8; 32]) } else { spec.model_id() };
        let namespace = NAMESPACES[dice.below(2)];
        let all_roots: Vec<RootHash> = self.0.iter().flat_map(|of| of.roots.values().copied()).collect();
        let of = &mut self.0[usize::from(step.is_stranger)];
        let is_known = of.models.contains_key(&model);
        let path = [("model_id", model.to_string()), ("profile_hash", ProfileHash::of(&profile).to_string())];
        match step.operation.name.as_str() {
            "register_model" => {
                let is_new = of.models.insert(spec.model_id(), spec.clone()).is_none();
                let answer = step.send(&[], "", serde_json::to_vec(&spec).expect("serialises")).await;
                let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
                let registered: RegisteredModel = json(answer, status).await;
                assert_eq!((registered.model_id, registered.created), (spec.model_id(), is_new));
            }
            "list_models" => {
                let listed: ModelList = json(step.send(&[], "", Vec::new()).await, StatusCode::OK).await;
                let listed: BTreeSet<_> = listed.models.iter().map(|info| info.model_id).collect();
                // The bench registered a model of its own, too.
                let drawn = (0..MODELS).map(|n| self::spec(n).model_id());
                let expected: BTreeSet<_> = of.models.keys().copied().collect();
                assert_eq!(drawn.filter(|id| listed.contains(id)).collect::<BTreeSet<_>>(), expected);
            }
            "get_model" => {
                let answer = step.send(&path, "", Vec::new()).await;
                match of.models.get(&model) {
                    Some(spec) => assert_eq!(json::<ModelSpec>(answer, StatusCode::OK).await, *spec),
                    None => nothing(answer).await,
                }
            }
            "put_profile" => {
                let answer = step.send(&path, "", profile.clone()).await;
                if !is_known {
                    return nothing(answer).await;
                }
                let is_new = of.profiles.entry(model).or_default().insert(profile);
                assert_eq!(answer.status(), if is_new { StatusCode::CREATED } else { StatusCode::OK });
            }
            "get_profile" => {
                let answer = step.send(&path, "", Vec::new()).await;
                if !of.profiles.get(&model).is_some_and(|profiles| profiles.contains(&profile)) {
                    return nothing(answer).await;
                }
                assert_eq!(answer.bytes().await.expect("reads"), profile[..]);
            }
            "get_profile_levels" => {
                let answer = step.send(&path, "", Vec::new()).await;
                if !of.profiles.get(&model).is_some_and(|profiles| profiles.contains(&profile)) {
                    return nothing(answer).await;
                }
                let told: ProfileLevels = json(answer, StatusCode::OK).await;
                assert!(told.levels.is_empty(), "what is stored here is no profile");
            }
            "list_profiles" => {
                let answer = step.send(&path, "", Vec::new()).await;
                if !is_known {
                    return nothing(answer).await;
                }
                let listed: ProfileList = json(answer, StatusCode::OK).await;
                let listed: BTreeSet<_> =
                    listed.profiles.iter().map(|info| info.profile_hash.to_string()).collect();
                let known = of.profiles.get(&model).into_iter().flatten();
                assert_eq!(listed, known.map(|profile| ProfileHash::of(profile).to_string()).collect());
            }
            "report_training" => {
                let request = json!({"outcome": "failed", "reason": "none fits", "sampled_chunks": 1,
                    "sampled_tokens": step.at, "in_force": ProfileHash::of(&profile)});
                let answer = step.send(&path, "", request.to_string().into_bytes()).await;
                if !is_known {
                    return nothing(answer).await;
                }
                assert_eq!(answer.status(), StatusCode::NO_CONTENT);
                of.trainings.entry(model).or_default().push(step.at);
            }
            "list_trainings" => {
                let answer = step.send(&path, "", Vec::new()).await;
                if !is_known {
                    return nothing(answer).await;
                }
                let listed: TrainingList = json(answer, StatusCode::OK).await;
                let listed: Vec<_> = listed.trainings.iter().map(|of| of.sampled_tokens as usize).collect();
                let reported = of.trainings.get(&model).into_iter().flatten().rev();
                assert_eq!(listed, reported.take(TRAININGS_KEPT_MAX).copied().collect::<Vec<_>>());
            }
            name @ ("open_namespace" | "rotate_namespace") => {
                let mut request = json!({"namespace": namespace, "model_id": model});
                if name == "rotate_namespace" {
                    request["keep_s"] = 3_600.into();
                }
                let answer = step.send(&[], "", request.to_string().into_bytes()).await;
                if !is_known {
                    return nothing(answer).await;
                }
                let NamespaceResponse { root } = json(answer, StatusCode::OK).await;
                let before = of.roots.insert((namespace.to_owned(), model), root);
                match before {
                    Some(before) if name == "open_namespace" => assert_eq!(root, before),
                    // A root is nobody else's, of no other namespace, model or generation.
                    _ => assert!(!all_roots.contains(&root), "{root} was one before"),
                }
                if name == "rotate_namespace" {
                    // The namespace's salt is that of every model in it.
                    of.roots.retain(|(other, of), _| other != namespace || *of == model);
                }
            }
            other => panic!("{other} is not judged"),
        }
    }
}
