//! Settings of the store's location and of the credentials for it.

use url::Url;

use super::{super::NO_STORE, Setting, parsed, quoted};

pub(super) const URL: Setting = Setting {
    key: "store.url",
    help: "The object store: file:///path or s3://bucket/prefix (memory:// for tests). Required.",
    example: "\"file:///var/lib/kvasir/store\"",
    set: |c, t| {
        c.store.url =
            t.parse().map_err(|_| "is not a URL such as file:///path or s3://bucket/prefix".to_owned())?;
        Ok(())
    },
    get: |c| Some(&c.store.url).filter(|u| u.as_str() != NO_STORE).and_then(quoted),
};

pub(super) const ENDPOINT: Setting = Setting {
    key: "store.endpoint",
    help: "S3 endpoint, if not AWS; default: AWS_ENDPOINT_URL. An http:// endpoint is used without TLS.",
    example: "\"http://127.0.0.1:9000\"",
    set: |c, t| endpoint(&mut c.store.endpoint, t),
    get: |c| c.store.endpoint.as_deref().and_then(quoted),
};

pub(super) const PUBLIC_ENDPOINT: Setting = Setting {
    key: "store.public_endpoint",
    help: "S3 endpoint in presigned URLs, if clients reach the store at a different one.",
    example: "\"https://s3.example.com\"",
    set: |c, t| endpoint(&mut c.store.public_endpoint, t),
    get: |c| c.store.public_endpoint.as_deref().and_then(quoted),
};

pub(super) const INSTANCE_CREDENTIALS: Setting = Setting {
    key: "store.instance_credentials",
    help: "Query the machine's metadata service for S3 credentials if none are set. Off: s3:// without credentials fails at start.",
    example: "",
    set: |c, t| parsed(&mut c.store.instance_credentials, t, "true or false"),
    get: |c| Some(c.store.instance_credentials.to_string()),
};

/// Errors do not repeat the text: it may contain a password.
fn endpoint(slot: &mut Option<String>, text: &str) -> Result<(), String> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    url.ok_or_else(|| "is not an http:// or https:// URL".to_owned())?;
    *slot = Some(text.to_owned());
    Ok(())
}
