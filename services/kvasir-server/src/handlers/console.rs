//! The console: a page over the API, contained in this binary. It includes no data: the browser fetches that
//! from the API, with the credential that its user enters.

use std::sync::LazyLock;

use axum::{
    Router,
    extract::Path,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::map_response,
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use kvasir_api::{ErrorCode, Problem, routes};

use super::v1::conditional::is_not_modified;
use crate::{api_error::ApiError, state::AppState};

/// The page may only load resources of this service; nothing may frame it, and it submits no forms.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                                       connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const INDEX: &str = "index.html";

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        /// All served files, by path in `console/`.
        const FILES: &[(&str, &[u8])] =
            &[$(($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/console/", $path)))),*];
    };
}

files!(
    "api.js",
    "calls.js",
    "chart.js",
    "chunks.js",
    "components.css",
    "components.js",
    "credential.js",
    "event-line.js",
    "feed.js",
    "format.js",
    "icon.svg",
    "index.html",
    "levels.js",
    "main.js",
    "models.js",
    "observable.js",
    "pages/audit.js",
    "pages/context.js",
    "pages/contexts.js",
    "pages/events.js",
    "pages/explain.js",
    "pages/jobs.js",
    "pages/loads.js",
    "pages/models.js",
    "pages/overview.js",
    "pages/plan.js",
    "pages/tenants.js",
    "plot.js",
    "replay.js",
    "resource.js",
    "route.js",
    "series.js",
    "stream.js",
    "style.css",
    "theme-early.js",
    "theme.js",
    "types.js",
    "vendor/htm.js",
    "vendor/preact-hooks.js",
    "vendor/preact.js",
    "vendor/uplot.css",
    "vendor/uplot.js",
    "view.js",
);

/// The files with their ETags, which are hashes of their bytes.
static ETAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let etag = |(_, bytes): &(&str, &[u8])| format!("\"{}\"", &blake3::hash(bytes).to_hex()[..32]);
    FILES.iter().map(etag).collect()
});

/// The routes of the page.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route(routes::CONSOLE, get(async || Redirect::permanent(routes::CONSOLE_FILES)))
        .route(routes::CONSOLE_FILES, get(async |headers: HeaderMap| serve(INDEX, &headers)))
        .route(
            &format!("{}{{*path}}", routes::CONSOLE_FILES),
            get(async |Path(path): Path<String>, headers: HeaderMap| serve(&path, &headers)),
        )
        .layer(map_response(with_policy))
}

/// A file by its exact path: there is no file system behind it to traverse.
fn serve(path: &str, headers: &HeaderMap) -> Response {
    let found = FILES.iter().zip(ETAGS.iter()).find(|((served, _), _)| *served == path);
    let Some((((_, bytes), etag), content_type)) = found.zip(content_type(path)) else {
        let detail = format!("the console has no file {path:?}; its start page is {}", routes::CONSOLE_FILES);
        return ApiError::from(Problem::new(ErrorCode::UnknownRoute, detail)).into_response();
    };
    let validators = [(header::ETAG, etag.as_str()), (header::CACHE_CONTROL, "no-cache")];
    if is_not_modified(headers, etag) {
        return (StatusCode::NOT_MODIFIED, validators).into_response();
    }
    (validators, [(header::CONTENT_TYPE, content_type)], *bytes).into_response()
}

/// The media type of a file; `None` for types that browsers do not need.
fn content_type(path: &str) -> Option<&'static str> {
    Some(match path.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        _ => return None,
    })
}

async fn with_policy(mut response: Response) -> Response {
    let policy = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    response.headers_mut().extend(policy.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    fn walk(folder: &Path, root: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, root, found);
            } else {
                let name = path.strip_prefix(root).expect("below").to_str().expect("text").to_owned();
                found.extend(content_type(&name).map(|_| name));
            }
        }
    }

    /// A file in the folder but not in the list would be missing from the page, or unused.
    #[test]
    fn what_is_in_the_folder_is_served() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        let mut found = BTreeSet::new();
        walk(&root, &root, &mut found);
        assert_eq!(found, FILES.iter().map(|(path, _)| (*path).to_owned()).collect());
        assert!(FILES.iter().all(|(path, _)| content_type(path).is_some()));
    }
}
