//! Every route × role × own or other tenant × kind of credential, from the document that the running service serves.
//!
//! A route of the document that [`TABLE`] does not know fails the test, as does one of the table that is gone, and one
//! whose role in the document is not the table's.

use kvasir_api::{Role, routes};
use reqwest::Response;
use serde_json::Value;

use crate::bench::{Bench, Ids, Operation, Who, body, operations, plain};

use Outcome::{ByRole, Is, Problem};

/// How an allowed request ends.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    /// With a status.
    Is(u16),
    /// As a problem.
    Problem(&'static str),
    /// As a problem for readers, with a status for the others.
    ByRole(&'static str, u16),
}

/// An operation: its role (`None`: open to all), its result for the tenant that owns the ids, and for another
/// tenant.
type Row = (&'static str, Option<Role>, Outcome, Outcome);

const READ: Option<Role> = Some(Role::Read);
const WRITE: Option<Role> = Some(Role::Write);
const ADMIN: Option<Role> = Some(Role::Admin);
const OPERATOR: Option<Role> = Some(Role::Operator);

/// The expected results. They are deliberately written by hand.
const TABLE: &[Row] = &[
    ("livez", None, Is(200), Is(200)),
    ("readyz", None, Is(200), Is(200)),
    ("metrics", None, Is(200), Is(200)),
    ("openapi", None, Is(200), Is(200)),
    ("get_config", READ, Is(200), Is(200)),
    ("get_members", READ, Is(200), Is(200)),
    ("register_model", READ, ByRole("unknown_model", 201), ByRole("unknown_model", 201)),
    ("list_models", READ, Is(200), Is(200)),
    ("get_model", READ, Is(200), Problem("unknown_model")),
    ("list_profiles", READ, Is(200), Problem("unknown_model")),
    ("put_profile", WRITE, Is(200), Problem("unknown_model")),
    ("get_profile", READ, Is(200), Problem("unknown_profile")),
    ("get_profile_levels", READ, Is(200), Problem("unknown_profile")),
    ("report_training", ADMIN, Is(204), Problem("unknown_model")),
    ("list_trainings", READ, Is(200), Problem("unknown_model")),
    ("open_namespace", READ, Is(200), Problem("unknown_model")),
    ("rotate_namespace", ADMIN, Is(200), Problem("unknown_model")),
    // Keys are a tenant's own: another one's are there, or not, whatever these are.
    ("put_opaque_object", WRITE, Is(200), Is(201)),
    ("get_opaque_object", READ, Is(200), Problem("unknown_object")),
    ("delete_opaque_object", WRITE, Is(204), Problem("unknown_object")),
    ("lookup_opaque_objects", READ, Is(200), Is(200)),
    ("read_opaque_objects", READ, Is(200), Is(200)),
    ("write_opaque_objects", WRITE, Is(200), Is(200)),
    ("explain_opaque_objects", READ, Is(200), Is(200)),
    ("lookup", READ, Is(200), Problem("unknown_model")),
    ("explain", READ, Is(200), Is(200)),
    ("list_plan_options", READ, Is(200), Is(200)),
    ("plan", READ, Is(200), Is(200)),
    ("sample_chunks", ADMIN, Is(200), Problem("unknown_model")),
    ("put_chunk", WRITE, Is(200), Problem("unknown_model")),
    ("get_chunk", READ, Is(200), Problem("unknown_chunk")),
    ("delete_chunk", WRITE, Is(204), Problem("unknown_chunk")),
    ("get_object", READ, Is(200), Problem("unknown_chunk")),
    ("delete_object", WRITE, Is(204), Problem("unknown_chunk")),
    ("get_object_url", READ, Is(200), Problem("unknown_chunk")),
    ("get_object_status", READ, Is(200), Problem("unknown_chunk")),
    ("announce_upload", WRITE, Is(201), Problem("unknown_model")),
    ("commit_upload", WRITE, Is(200), Problem("unknown_upload")),
    ("create_context", WRITE, Is(201), Problem("unknown_model")),
    ("list_contexts", READ, Is(200), Is(200)),
    ("get_context", READ, Is(200), Problem("unknown_context")),
    ("change_context", WRITE, Is(200), Problem("unknown_context")),
    ("delete_context", WRITE, Is(204), Problem("unknown_context")),
    ("list_context_versions", READ, Is(200), Problem("unknown_context")),
    ("events", READ, Is(200), Is(200)),
    ("get_usage", READ, Is(200), Is(200)),
    ("report_load", READ, Is(204), Is(204)),
    ("list_loads", READ, Is(200), Is(200)),
    ("get_series", OPERATOR, Is(200), Is(200)),
    ("start_job", OPERATOR, Is(202), Is(202)),
    ("list_jobs", OPERATOR, Is(200), Is(200)),
    // A job is the replica's, not a tenant's.
    ("get_job", OPERATOR, Is(200), Is(200)),
    ("cancel_job", OPERATOR, Is(202), Is(202)),
    ("list_audited_calls", ADMIN, Is(200), Is(200)),
];

fn callers() -> Vec<Who> {
    let nobodies = ["", "Bearer kv_0000", "Basic YTpi", "Bearer", "expired"].map(Who::Nobody);
    let own = Role::ALL.iter().map(|role| Who::Own(*role));
    let other = Role::ALL.iter().map(|role| Who::Other(*role));
    nobodies.into_iter().chain(own).chain(other).collect()
}

impl Bench {
    async fn cell(&mut self, who: Who, operation: &Operation, row: &Row) {
        let (ids, chunk) = self.seed(&operation.name).await;
        let place = format!("{} {} as {who:?}", operation.method, operation.name);
        let (_, required, own, other) = *row;
        let answer = self.ask(who, operation, &ids, &chunk).await;
        let expected = match (required, who) {
            (None, _) => Is(200),
            (_, Who::Nobody(_)) => Problem("unauthorized"),
            (Some(required), Who::Own(role) | Who::Other(role)) if role < required => Problem("forbidden"),
            (_, Who::Own(_)) => own,
            (_, Who::Other(_)) => other,
        };
        let role = if let Who::Own(role) | Who::Other(role) = who { role } else { Role::Read };
        check(&place, operation, role, expected, &answer);
        // What belongs to the other tenant, and what does not exist.
        if let (Who::Other(_), true) = (who, operation.name != "events" && operation.name != "metrics") {
            let nothing = Ids::random(self.cells, ids.job);
            let nothing_answer = self.ask(who, operation, &nothing, &chunk).await;
            if matches!(expected, Problem(_)) {
                let (a, b) = (plain(answer, &ids).await, plain(nothing_answer, &nothing).await);
                assert_eq!(a, b, "{place}: foreign and random ids");
            }
        }
    }
}

fn check(place: &str, operation: &Operation, role: Role, expected: Outcome, answer: &Response) {
    let status = answer.status().as_u16();
    let media = answer.headers().get("content-type").map_or(String::new(), |value| format!("{value:?}"));
    let wanted = match expected {
        Is(status) => status,
        ByRole(_, status) if role > Role::Read => status,
        Problem(code) | ByRole(code, _) => {
            assert!(media.contains("problem+json"), "{place}: {status} {media}");
            let code = kvasir_api::ErrorCode::ALL.iter().find(|known| known.as_str() == code);
            code.unwrap_or_else(|| panic!("{}: no such code", operation.name)).status()
        }
    };
    assert_eq!(status, wanted, "{place}: expected {expected:?}");
}

#[tokio::test]
async fn every_route_role_tenant_and_credential() {
    let mut bench = Bench::start().await;
    let document: Value =
        bench.guarded.service.get(routes::OPENAPI, &[]).await.json().await.expect("its JSON");
    let operations = operations(&document);
    for (name, ..) in TABLE {
        assert!(operations.iter().any(|operation| operation.name == *name), "{name} is not in the document");
    }
    let (callers, mut cells) = (callers(), 0);
    for operation in &operations {
        let row = TABLE.iter().find(|(name, ..)| *name == operation.name);
        let row = row.unwrap_or_else(|| panic!("{} has no row: say who may call it", operation.name));
        assert_eq!(
            operation.role.as_deref(),
            row.1.map(Role::as_str),
            "the document's role of {}",
            operation.name
        );
        for who in &callers {
            bench.cell(*who, operation, row).await;
            cells += 1;
        }
    }
    println!(
        "{} operations x {} callers = {cells} cells, each as the table says",
        operations.len(),
        callers.len()
    );
    bench.guarded.service.stop().await;
}

/// The tenant is the credential's: a body that names one is refused, whatever it names.
#[tokio::test]
async fn no_body_names_a_tenant() {
    let mut bench = Bench::start().await;
    let document: Value =
        bench.guarded.service.get(routes::OPENAPI, &[]).await.json().await.expect("its JSON");
    let mut asked = 0;
    for operation in operations(&document) {
        let (ids, chunk) = bench.seed(&operation.name).await;
        let Some(Ok(Value::Object(sound))) =
            body(&operation.name, &ids, &chunk).map(|body| serde_json::from_slice(&body))
        else {
            continue;
        };
        for field in ["tenant", "tenant_id"] {
            let mut request = sound.clone();
            request.insert(field.to_owned(), "own".into());
            let path = operation.path.replace("{context_id}", &ids.context.to_string());
            let token = bench.tokens[&("own", Role::Operator)].clone();
            let json = Value::Object(request).to_string();
            let answer = bench.guarded.send(&token, operation.method.clone(), &path, json).await;
            assert_eq!(answer.status(), 400, "{} with {field}", operation.name);
            asked += 1;
        }
    }
    assert!(asked >= 16, "{asked}");
    bench.guarded.service.stop().await;
}
