//! The console: a page over the API, contained in this binary. It includes no data: the browser fetches that
//! from the API, with the credential that its user enters.

use std::{io::Write, sync::LazyLock};

use axum::{
    Router,
    body::Bytes,
    extract::Path,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::map_response,
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use flate2::{Compression, write::GzEncoder};
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
    "drift.js",
    "event-line.js",
    "feed.js",
    "format.js",
    "icon.svg",
    "index.html",
    "levels.js",
    "main.js",
    "members.js",
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

/// A file in the encodings that it is served in.
struct ServedFile {
    path: &'static str,
    content_type: &'static str,
    identity: Encoded<&'static [u8]>,
    gzip: Encoded<Bytes>,
}

/// The bytes of one encoding, with their own ETag.
struct Encoded<B> {
    bytes: B,
    etag: String,
}

/// All files, compressed on the first request: 50 ms once, instead of compressed copies among the sources.
static SERVED: LazyLock<Vec<ServedFile>> = LazyLock::new(|| {
    let served = |(path, bytes): &(&'static str, &'static [u8])| {
        let hash = &blake3::hash(bytes).to_hex()[..32];
        Some(ServedFile {
            path,
            content_type: content_type(path)?,
            identity: Encoded { bytes, etag: format!("\"{hash}\"") },
            gzip: Encoded { bytes: gzip(bytes).into(), etag: format!("\"{hash}-gzip\"") },
        })
    };
    FILES.iter().filter_map(served).collect()
});

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("a Vec takes all bytes")
}

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
    let Some(file) = SERVED.iter().find(|file| file.path == path) else {
        let detail = format!("the console has no file {path:?}; its start page is {}", routes::CONSOLE_FILES);
        return ApiError::from(Problem::new(ErrorCode::UnknownRoute, detail)).into_response();
    };
    let compressed = accepts_gzip(headers);
    let etag = if compressed { &file.gzip.etag } else { &file.identity.etag };
    let validators = [
        (header::ETAG, etag.as_str()),
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept-encoding"),
    ];
    if is_not_modified(headers, etag) {
        return (StatusCode::NOT_MODIFIED, validators).into_response();
    }
    let content_type = [(header::CONTENT_TYPE, file.content_type)];
    if compressed {
        let encoding = [(header::CONTENT_ENCODING, "gzip")];
        return (validators, content_type, encoding, file.gzip.bytes.clone()).into_response();
    }
    (validators, content_type, file.identity.bytes).into_response()
}

/// Whether the client names gzip among the encodings that it accepts, with a weight above 0.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|list| list.split(',')).any(|item| {
        let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
        let weight = parameters.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f32>);
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_ok_and(|weight| weight > 0.0)
    })
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
    use std::{collections::BTreeSet, fs, io::Read, path::Path};

    use flate2::read::GzDecoder;

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

    /// Bytes of all files together, compressed.
    const COMPRESSED_BYTES_MAX: usize = 300_000;

    #[test]
    fn compressed_files_are_the_same_and_small() {
        for file in SERVED.iter() {
            let mut bytes = Vec::new();
            GzDecoder::new(&*file.gzip.bytes).read_to_end(&mut bytes).expect("gzip");
            assert!(bytes == file.identity.bytes, "{}", file.path);
            assert_ne!(file.gzip.etag, file.identity.etag);
        }
        assert_eq!(SERVED.len(), FILES.len());
        let total: usize = SERVED.iter().map(|file| file.gzip.bytes.len()).sum();
        assert!(total <= COMPRESSED_BYTES_MAX, "{total} bytes");
    }

    #[test]
    fn gzip_is_sent_to_clients_that_accept_it() {
        for (value, accepted) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.1", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("gzip;q=x", false),
            ("identity", false),
            ("xgzip", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, value.parse().expect("a value"))]);
            assert_eq!(accepts_gzip(&headers), accepted, "{value:?}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
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
