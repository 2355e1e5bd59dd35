//! Objects by key.

use std::collections::{BTreeMap, BTreeSet};

use kvasir_api::{
    ExplainObjectsResponse, ObjectInfo, ObjectsResponse, Role, StoredObject, WriteObjectsResponse,
};
use kvasir_tests::faulty::Dice;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{Step, json, nothing};
use crate::bench::Bench;

const KEYS: usize = 4;
const VALUES: usize = 3;

fn value(n: usize) -> Vec<u8> {
    vec![b'a' + n as u8; 10 + n]
}

/// By tenant (whether it is the stranger) and key.
#[derive(Default)]
pub(super) struct KeyValues {
    values: BTreeMap<(bool, String), Vec<u8>>,
    removed: BTreeSet<(bool, String)>,
}

impl KeyValues {
    fn found(&self, step: &Step<'_>, key: &str) -> Option<&Vec<u8>> {
        self.values.get(&(step.is_stranger, key.to_owned()))
    }

    pub(super) async fn step(&mut self, step: &Step<'_>, dice: &mut Dice) {
        let draw = |dice: &mut Dice| match step.is_random {
            true => format!("nobody-{}", step.at),
            false => format!("key-{}", dice.below(KEYS)),
        };
        let key = draw(dice);
        let path = [("namespace", "n".to_owned()), ("key", key.clone())];
        let mut keys = vec![key.clone(), draw(dice), draw(dice)];
        keys.dedup();
        println!("  of {keys:?}; there are {:?}", self.values.keys());
        let leading: Vec<&Vec<u8>> = keys.iter().map_while(|key| self.found(step, key)).collect();
        let asked = json!({ "keys": keys }).to_string().into_bytes();
        match step.operation.name.as_str() {
            "put_opaque_object" => {
                let value = value(dice.below(VALUES));
                let answer = step.send(&path, "", value.clone()).await;
                self.stored(step, &key, value, answer.status());
                if answer.status().is_success() {
                    let status = answer.status();
                    let stored: StoredObject = json(answer, status).await;
                    assert_eq!(
                        (stored.key.as_str(), stored.created),
                        (key.as_str(), status == StatusCode::CREATED)
                    );
                }
            }
            "get_opaque_object" => {
                let answer = step.send(&path, "", Vec::new()).await;
                match self.found(step, &key) {
                    Some(value) => {
                        assert_eq!(answer.status(), StatusCode::OK);
                        assert_eq!(answer.bytes().await.expect("reads"), value[..]);
                    }
                    None => nothing(answer).await,
                }
            }
            "delete_opaque_object" => {
                let answer = step.send(&path, "", Vec::new()).await;
                let of = (step.is_stranger, key);
                if self.values.remove(&of).is_some() {
                    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
                    self.removed.insert(of);
                } else if !self.removed.contains(&of) {
                    nothing(answer).await;
                }
                // Removing once more what lies there until the grace is over may be a success, too.
            }
            "lookup_opaque_objects" => {
                let answer: ObjectsResponse = json(step.send(&path, "", asked).await, StatusCode::OK).await;
                let owed = leading.iter().map(|value| Some(ObjectInfo { bytes: value.len() as u64 }));
                assert_eq!(answer.objects, owed.collect::<Vec<_>>());
            }
            "read_opaque_objects" => {
                let answer = step.send(&path, "", asked).await;
                assert_eq!(answer.status(), StatusCode::OK);
                let framed = leading
                    .iter()
                    .flat_map(|value| [&(value.len() as u64).to_le_bytes()[..], value].concat());
                assert_eq!(answer.bytes().await.expect("reads"), framed.collect::<Vec<u8>>());
            }
            "explain_opaque_objects" => {
                let answer: ExplainObjectsResponse =
                    json(step.send(&path, "", asked).await, StatusCode::OK).await;
                let first_missing = keys.get(leading.len()).map(String::as_str);
                assert_eq!((answer.keys, answer.found), (keys.len(), leading.len()));
                assert_eq!(answer.key.as_ref().map(|key| key.as_str()), first_missing);
            }
            "write_opaque_objects" => {
                keys.sort();
                keys.dedup();
                let values: Vec<_> = keys.iter().map(|_| value(dice.below(VALUES))).collect();
                let objects =
                    keys.iter().zip(&values).map(|(key, value)| json!({"key": key, "bytes": value.len()}));
                let head = json!({"objects": objects.collect::<Vec<_>>()}).to_string();
                let body = [&(head.len() as u32).to_le_bytes(), head.as_bytes(), &values.concat()].concat();
                let answer: WriteObjectsResponse =
                    json(step.send(&path, "", body).await, StatusCode::OK).await;
                assert_eq!(answer.objects.len(), keys.len());
                for ((key, value), written) in keys.iter().zip(values).zip(answer.objects) {
                    let status = match (written.created, written.problem) {
                        (true, None) => StatusCode::CREATED,
                        (false, None) => StatusCode::OK,
                        (_, Some(problem)) => StatusCode::from_u16(problem.status).expect("a status"),
                    };
                    self.stored(step, key, value, status);
                }
            }
            other => panic!("{other} is not judged"),
        }
    }

    /// An object was sent: it is new, the same, or refused because there is another.
    fn stored(&mut self, step: &Step<'_>, key: &str, value: Vec<u8>, status: StatusCode) {
        let expected = match self.found(step, key) {
            None => StatusCode::CREATED,
            Some(before) if *before == value => StatusCode::OK,
            Some(_) => StatusCode::PRECONDITION_FAILED,
        };
        assert_eq!(status, expected, "{key}");
        if status == StatusCode::CREATED {
            self.values.insert((step.is_stranger, key.to_owned()), value);
        }
    }

    /// Checks at the end that everything is stored.
    pub(super) async fn all(&self, bench: &Bench) {
        for ((is_stranger, key), value) in &self.values {
            let tenant = if *is_stranger { "other" } else { "own" };
            let path = format!("/v1/namespaces/n/objects/{key}");
            let found =
                bench.guarded.send(&bench.tokens[&(tenant, Role::Read)], Method::GET, &path, "").await;
            assert_eq!(found.bytes().await.expect("reads"), value[..], "{key}");
        }
    }
}
