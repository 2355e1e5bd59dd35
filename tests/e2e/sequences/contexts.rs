//! Contexts and their versions.

use std::collections::BTreeMap;

use kvasir_api::{Context, ContextList, ContextVersions, Role, routes};
use kvasir_tests::faulty::Dice;
use kvasir_types::SeqHash;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Step, chunks::Chunks, json, nothing};
use crate::bench::Bench;

/// The versions of each context that was not deleted, oldest first.
#[derive(Default)]
pub(super) struct Contexts(BTreeMap<Uuid, Vec<Context>>);

impl Contexts {
    pub(super) async fn step(&mut self, step: &Step<'_>, dice: &mut Dice, chunks: &Chunks) {
        let ids: Vec<Uuid> = self.0.keys().copied().collect();
        let is_there = !step.is_random && !ids.is_empty();
        let id = if is_there { ids[dice.below(ids.len())] } else { Uuid::now_v7() };
        let may_find = step.may_find() && is_there;
        let path = [("context_id", id.to_string())];
        let label = ["x", "y"][dice.below(2)];
        match step.operation.name.as_str() {
            "create_context" => {
                let wanted = chunks.some_chain(dice);
                let (pinned, labels) = (dice.below(2) == 0, json!({"app": label}));
                let request = json!({"model_id": chunks.model, "namespace": "n", "chunks": wanted, "labels": labels, "pinned": pinned});
                let answer = step.send(&[], "", request.to_string().into_bytes()).await;
                if step.is_stranger || !chunks.are_stored(&wanted) {
                    assert!(answer.status().is_client_error(), "{}", answer.status());
                    return;
                }
                let made: Context = json(answer, StatusCode::CREATED).await;
                assert_eq!((made.version, &made.chunks, made.pinned), (1, &wanted, pinned));
                assert_eq!(made.labels.values().collect::<Vec<_>>(), [label]);
                assert!(self.0.insert(made.context_id, vec![made]).is_none(), "an id comes once");
            }
            "get_context" => {
                let (versions, asked) = (self.0.get(&id), dice.below(3) as u64);
                let query = if asked > 0 { format!("?version={asked}") } else { String::new() };
                let answer = step.send(&path, &query, Vec::new()).await;
                let owed = versions.filter(|_| may_find).and_then(|versions| match asked {
                    0 => versions.last(),
                    _ => versions.iter().find(|version| version.version == asked),
                });
                match owed {
                    Some(version) => assert_eq!(json::<Context>(answer, StatusCode::OK).await, *version),
                    None => nothing(answer).await,
                }
            }
            "change_context" => {
                let mut change = json!({});
                let (relabel, repin) = (dice.below(2) == 0, dice.below(2) == 0);
                if relabel {
                    change["labels"] = json!({"app": label, "changed": "yes"});
                }
                if repin {
                    change["pinned"] = Value::from(dice.below(2) == 0);
                }
                let answer = step.send(&path, "", change.to_string().into_bytes()).await;
                if !may_find {
                    return nothing(answer).await;
                }
                let versions = self.0.get_mut(&id).expect("is there");
                let last = versions.last().expect("one at least").clone();
                // To be pinned its chunks have to be there.
                if change["pinned"] == true && !chunks.are_stored(&last.chunks) {
                    assert!(answer.status().is_client_error() || last.pinned, "{}", answer.status());
                    if !answer.status().is_success() {
                        return;
                    }
                }
                let changed: Context = json(answer, StatusCode::OK).await;
                // To unpin one that is not pinned makes no version.
                if !relabel && change["pinned"] == false && !last.pinned {
                    assert_eq!(changed, last);
                    return;
                }
                let labels = if relabel { 2 } else { last.labels.len() };
                assert_eq!((changed.version, changed.labels.len()), (last.version + 1, labels));
                assert_eq!(changed.pinned, change["pinned"].as_bool().unwrap_or(last.pinned));
                assert_eq!(changed.chunks, last.chunks);
                versions.push(changed);
            }
            "delete_context" => {
                let answer = step.send(&path, "", Vec::new()).await;
                if !may_find {
                    return nothing(answer).await;
                }
                assert_eq!(answer.status(), StatusCode::NO_CONTENT);
                self.0.remove(&id);
            }
            "list_contexts" => {
                let answer = step.send(&[], &format!("?labels=app={label}&limit=500"), Vec::new()).await;
                let listed: ContextList = json(answer, StatusCode::OK).await;
                let newest =
                    self.0.values().filter_map(|versions| versions.last()).filter(|_| !step.is_stranger);
                let owed: Vec<_> =
                    newest.filter(|version| version.labels.values().any(|value| value == label)).collect();
                assert_eq!(listed.contexts.iter().collect::<Vec<_>>(), owed);
            }
            "list_context_versions" => {
                let answer = step.send(&path, "", Vec::new()).await;
                if !may_find {
                    return nothing(answer).await;
                }
                let listed: ContextVersions = json(answer, StatusCode::OK).await;
                assert_eq!(
                    listed.versions,
                    self.0[&id].iter().map(|version| version.version).collect::<Vec<_>>()
                );
            }
            other => panic!("{other} is not judged"),
        }
    }

    /// Checks at the end that everything is stored.
    pub(super) async fn all(&self, bench: &Bench) {
        let token = &bench.tokens[&("own", Role::Read)];
        for (id, versions) in &self.0 {
            let found = bench.guarded.send(token, Method::GET, &routes::context(id), "").await;
            assert_eq!(json::<Context>(found, StatusCode::OK).await, *versions.last().expect("one at least"));
        }
    }
}

/// Chunks of a context's request.
pub(super) type Chain = Vec<SeqHash>;
