//! The OpenAPI document, generated from the router's handlers, so that neither can lack a route of the other;
//! and its page, contained in this binary.

mod examples;

use axum::{
    Router,
    body::Bytes,
    http::header,
    response::{IntoResponse, Response},
};
use kvasir_api::{ErrorCode, EventsDropped, MEDIA_PROBLEM, Problem, required_role, routes as paths};
use serde_json::{Value, json};
use utoipa::{
    OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::{ops, v1};
use crate::state::AppState;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Kvasir",
        description = "KV caches of language models: stored once, loaded in time. Hashes are 64 hex digits; errors are \
                       problem documents with a stable `code`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Problem, EventsDropped))
)]
struct ApiDoc;

/// Every route, with its operation.
pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(ApiDoc::openapi())
        .routes(routes!(ops::livez))
        .routes(routes!(ops::readyz))
        .routes(routes!(ops::metrics))
        .routes(routes!(v1::config::get))
        .routes(routes!(v1::members::get))
        .routes(routes!(v1::models::register, v1::models::list))
        .routes(routes!(v1::models::get))
        .routes(routes!(v1::profiles::list))
        .routes(routes!(v1::profiles::put, v1::profiles::get))
        .routes(routes!(v1::profiles::levels))
        .routes(routes!(v1::trainings::report, v1::trainings::list))
        .routes(routes!(v1::namespaces::post))
        .routes(routes!(v1::namespaces::rotate))
        .routes(routes!(v1::objects::put, v1::objects::get, v1::objects::delete))
        .routes(routes!(v1::objects::lookup))
        .routes(routes!(v1::objects::read))
        .routes(routes!(v1::write_objects::write))
        .routes(routes!(v1::objects::explain))
        .routes(routes!(v1::lookup::post))
        .routes(routes!(v1::explain::post))
        .routes(routes!(v1::plan::options, v1::plan::post))
        .routes(routes!(v1::chunks::put, v1::chunks::get_preferred, v1::chunks::delete))
        .routes(routes!(v1::chunks::get_object, v1::chunks::delete_object))
        .routes(routes!(v1::chunks::url))
        .routes(routes!(v1::chunks::status))
        .routes(routes!(v1::chunks::sample))
        .routes(routes!(v1::uploads::announce))
        .routes(routes!(v1::uploads::commit))
        .routes(routes!(v1::contexts::create, v1::contexts::list))
        .routes(routes!(v1::contexts::get, v1::contexts::change, v1::contexts::delete))
        .routes(routes!(v1::contexts::versions))
        .routes(routes!(v1::events::stream))
        .routes(routes!(v1::admin::usage))
        .routes(routes!(v1::series::get))
        .routes(routes!(v1::loads::report, v1::loads::list))
        .routes(routes!(v1::admin::start_job, v1::admin::list_jobs))
        .routes(routes!(v1::admin::get_job))
        .routes(routes!(v1::admin::cancel_job))
        .routes(routes!(v1::admin::audit))
}

/// The document as served: with the parts common to all operations, and with examples.
pub(crate) fn finalize_document(mut document: utoipa::openapi::OpenApi) -> Bytes {
    if let Some(components) = &mut document.components {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    }
    let mut document = serde_json::to_value(document).unwrap_or_default();
    let examples = examples::all();
    if let Some(Value::Object(all)) = document.get_mut("paths") {
        all.insert(paths::OPENAPI.to_owned(), openapi_path_item());
        for (path, item) in all {
            for (method, operation) in item.as_object_mut().into_iter().flatten() {
                add_common_fields(method, path, operation);
                examples.insert_into(operation);
            }
        }
    }
    mark_unsigned_formats(&mut document);
    serde_json::to_vec(&document).unwrap_or_default().into()
}

/// Unsigned integers have twice the range, but the generator calls them `int64` and `int32`.
fn mark_unsigned_formats(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let format = map.get("format").and_then(Value::as_str).and_then(|format| match format {
                "int64" => Some("uint64"),
                "int32" => Some("uint32"),
                _ => None,
            });
            if let Some(format) = format
                && map.get("minimum").is_some_and(|min| min == 0)
            {
                map.insert("format".to_owned(), format.into());
            }
            map.values_mut().for_each(mark_unsigned_formats);
        }
        Value::Array(list) => list.iter_mut().for_each(mark_unsigned_formats),
        _ => {}
    }
}

/// The document lists its own path.
fn openapi_path_item() -> Value {
    json!({"get": {
        "tags": ["service"],
        "summary": "Returns this document.",
        "operationId": "openapi",
        "responses": {"200": {"description": "OpenAPI 3.1", "content": {"application/json": {"schema": {"type": "object"}}}}}
    }})
}

/// Every operation has the same errors and role field.
fn add_common_fields(method: &str, path: &str, operation: &mut Value) {
    let codes: Vec<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    let problem = json!({
        "description": format!("a problem document; `code` is one of {}", codes.join(", ")),
        "content": {MEDIA_PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    });
    if let Some(Value::Object(responses)) = operation.get_mut("responses") {
        responses.insert("default".to_owned(), problem);
    }
    let security = match required_role(&method.to_uppercase(), path) {
        Some(role) => {
            operation["x-kvasir-role"] = role.as_str().into();
            json!([{}, {"bearer": []}])
        }
        None => json!([]),
    };
    operation["security"] = security;
}

/// Serves the document.
pub(crate) async fn serve_document(document: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document).into_response()
}

/// The page that shows it.
pub(crate) fn swagger_ui() -> Router<AppState> {
    let config = Config::new([paths::OPENAPI]).try_it_out_enabled(true).validator_url("none");
    SwaggerUi::new(paths::DOCS).config(config).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Router and document come from the same calls; check that the API crate's list of routes matches them.
    #[test]
    fn the_document_has_every_route_of_the_api_crate() {
        let (_, document) = routes().split_for_parts();
        let document: Value = serde_json::from_slice(&finalize_document(document)).expect("JSON");
        assert_eq!(document["openapi"].as_str().map(|v| &v[..3]), Some("3.1"));
        let all = document["paths"].as_object().expect("paths");
        let documented: std::collections::BTreeSet<_> = all.keys().map(String::as_str).collect();
        assert_eq!(documented, paths::ALL.iter().copied().collect());
        let operations = all.values().flat_map(|item| item.as_object().expect("an item").values());
        let names: Vec<_> = operations.map(|operation| operation["operationId"].to_string()).collect();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        for example in examples::all().operations() {
            assert!(names.contains(&format!("\"{example}\"")), "an example of no operation: {example}");
        }
    }
}
