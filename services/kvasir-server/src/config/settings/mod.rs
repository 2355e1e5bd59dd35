//! The table of settings: name, meaning, and how to parse and print each.

mod access;
mod cluster;
mod forms;
mod hot;
mod s3;
mod store;

use std::{path::PathBuf, time::Duration};

use self::forms::{
    bytes, bytes_or_none, bytes_text, duration, duration_text, jwt, parsed, path, path_text, positive,
    quoted, secret_text, text,
};
use kvasir_eviction::ParsePolicyError;

use super::{Config, LogFormat, setting::Setting};
use crate::limits;

/// Finds a setting by `section.key`.
pub(super) fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// All settings by section, each formatted by `line` from its TOML value.
pub(super) fn print(config: &Config, line: impl Fn(&Setting, Option<String>) -> String) -> String {
    let mut out = String::new();
    let mut section = "";
    for setting in SETTINGS {
        if setting.section() != section {
            section = setting.section();
            let gap = if out.is_empty() { "" } else { "\n" };
            out.push_str(&format!("{gap}[{section}]\n"));
        }
        out.push_str(&line(setting, (setting.get)(config)));
    }
    out
}

/// All settings.
pub const SETTINGS: &[Setting] = &[
    Setting {
        key: "server.listen",
        help: "Address and port to listen on.",
        example: "",
        set: |c, t| parsed(&mut c.server.listen, t, "an address such as 127.0.0.1:7480"),
        get: |c| quoted(c.server.listen.to_string()),
    },
    Setting {
        key: "server.ops_listen",
        help: "A second address, only for probes and metrics, always plain HTTP: for kubelets and scrapers without certificates.",
        example: "\"0.0.0.0:7481\"",
        set: |c, t| {
            parsed(c.server.ops_listen.insert(c.server.listen), t, "an address such as 127.0.0.1:7481")
        },
        get: |c| c.server.ops_listen.and_then(|address| quoted(address.to_string())),
    },
    Setting {
        key: "server.allow_unauthenticated",
        help: "Allow listening on non-loopback addresses without authentication, and requests whose Host is any name.",
        example: "",
        set: |c, t| parsed(&mut c.server.allow_unauthenticated, t, "true or false"),
        get: |c| Some(c.server.allow_unauthenticated.to_string()),
    },
    Setting {
        key: "server.connections_max",
        help: "Maximum number of connections; further ones wait in the listen queue.",
        example: "",
        set: |c, t| positive(&mut c.server.connections_max, t),
        get: |c| Some(c.server.connections_max.to_string()),
    },
    access::CONNECTIONS_PER_ADDRESS,
    access::CONNECTION_MEMORY,
    access::EGRESS,
    Setting {
        key: "server.drain_grace",
        help: "How long running requests may continue after SIGTERM; keep it below the orchestrator's own grace period.",
        example: "",
        set: |c, t| duration(&mut c.server.drain_grace, t),
        get: |c| duration_text(c.server.drain_grace),
    },
    s3::LISTEN,
    s3::DOMAINS,
    cluster::MEMBERS,
    cluster::ADVERTISE,
    cluster::ZONE,
    Setting {
        key: "auth.tenants_file",
        help: "Bearer tokens (their SHA-256) and quotas of tenants, as TOML; reloaded when the file changes.",
        example: "\"/etc/kvasir/tenants.toml\"",
        set: |c, t| path(c.auth.tenants_file.insert(PathBuf::new()), t),
        get: |c| c.auth.tenants_file.as_deref().and_then(path_text),
    },
    Setting {
        key: "auth.jwks_file",
        help: "Public keys of the issuer of JSON Web Tokens, as JWKS; reloaded when the file changes.",
        example: "\"/etc/kvasir/jwks.json\"",
        set: |c, t| path(&mut jwt(c).jwks_file, t),
        get: |c| c.auth.jwt.as_ref().and_then(|jwt| path_text(&jwt.jwks_file)),
    },
    Setting {
        key: "auth.jwt_issuer",
        help: "Claim iss that JSON Web Tokens must have.",
        example: "\"https://login.example.com/\"",
        set: |c, t| text(&mut jwt(c).issuer, t),
        get: |c| c.auth.jwt.as_ref().and_then(|jwt| quoted(&jwt.issuer)),
    },
    Setting {
        key: "auth.jwt_audience",
        help: "Claim aud that JSON Web Tokens must have.",
        example: "\"kvasir\"",
        set: |c, t| text(&mut jwt(c).audience, t),
        get: |c| c.auth.jwt.as_ref().and_then(|jwt| quoted(&jwt.audience)),
    },
    Setting {
        key: "auth.jwt_tenant_claim",
        help: "Claim of JSON Web Tokens that names the tenant; default: tenant.",
        example: "\"tenant\"",
        set: |c, t| text(&mut jwt(c).tenant_claim, t),
        get: |c| c.auth.jwt.as_ref().and_then(|jwt| quoted(&jwt.tenant_claim)),
    },
    Setting {
        key: "auth.jwt_role_claim",
        help: "Claim of JSON Web Tokens that names the role: read, write, admin or operator; default: role.",
        example: "\"role\"",
        set: |c, t| text(&mut jwt(c).role_claim, t),
        get: |c| c.auth.jwt.as_ref().and_then(|jwt| quoted(&jwt.role_claim)),
    },
    Setting {
        key: "auth.failures_per_minute",
        help: "Refused credentials per client address and minute; an address over the limit must wait.",
        example: "",
        set: |c, t| parsed(&mut c.auth.failures_per_minute, t, "a whole number"),
        get: |c| Some(c.auth.failures_per_minute.to_string()),
    },
    Setting {
        key: "tls.certificate_file",
        help: "Certificate chain of the service as PEM; if set, the service only accepts TLS. Reloaded when the file changes.",
        example: "\"/etc/kvasir/tls/tls.crt\"",
        set: |c, t| path(&mut c.tls.get_or_insert_default().certificate_file, t),
        get: |c| c.tls.as_ref().and_then(|tls| path_text(&tls.certificate_file)),
    },
    Setting {
        key: "tls.key_file",
        help: "Private key of tls.certificate_file as PEM.",
        example: "\"/etc/kvasir/tls/tls.key\"",
        set: |c, t| path(&mut c.tls.get_or_insert_default().key_file, t),
        get: |c| c.tls.as_ref().and_then(|tls| path_text(&tls.key_file)),
    },
    Setting {
        key: "tls.client_ca_file",
        help: "CA of client certificates as PEM; if set, every client needs a certificate.",
        example: "\"/etc/kvasir/tls/ca.crt\"",
        set: |c, t| path(c.tls.get_or_insert_default().client_ca_file.insert(PathBuf::new()), t),
        get: |c| c.tls.as_ref().and_then(|tls| tls.client_ca_file.as_deref()).and_then(path_text),
    },
    access::KEYS_FILE,
    access::KEYS,
    store::URL,
    store::ENDPOINT,
    store::PUBLIC_ENDPOINT,
    Setting {
        key: "store.region",
        help: "S3 region; AWS_REGION otherwise.",
        example: "\"us-east-1\"",
        set: |c, t| {
            c.store.region = Some(t.to_owned());
            Ok(())
        },
        get: |c| c.store.region.as_deref().and_then(quoted),
    },
    Setting {
        key: "store.access_key_id",
        help: "S3 access key; default: AWS_ACCESS_KEY_ID, then the pod's own identity.",
        example: "\"AKIA...\"",
        set: |c, t| {
            c.store.access_key_id = Some(t.to_owned());
            Ok(())
        },
        get: |c| c.store.access_key_id.as_deref().and_then(quoted),
    },
    Setting {
        key: "store.secret_access_key",
        help: "S3 secret key; default: AWS_SECRET_ACCESS_KEY. Prefer the variable to a file.",
        example: "\"...\"",
        set: |c, t| {
            c.store.secret_access_key = Some(t.to_owned().into());
            Ok(())
        },
        get: |c| secret_text(&c.store.secret_access_key),
    },
    Setting {
        key: "store.session_token",
        help: "S3 session token; default: AWS_SESSION_TOKEN.",
        example: "\"...\"",
        set: |c, t| {
            c.store.session_token = Some(t.to_owned().into());
            Ok(())
        },
        get: |c| secret_text(&c.store.session_token),
    },
    store::INSTANCE_CREDENTIALS,
    Setting {
        key: "store.requests_max",
        help: "Maximum concurrent requests to the store; further ones wait.",
        example: "",
        set: |c, t| positive(&mut c.store.requests_max, t),
        get: |c| Some(c.store.requests_max.to_string()),
    },
    Setting {
        key: "store.request_timeout",
        help: "Timeout of one attempt of a store request: until the head of the response, or the end of a write.",
        example: "",
        set: |c, t| duration(&mut c.store.request_timeout, t),
        get: |c| duration_text(c.store.request_timeout),
    },
    Setting {
        key: "store.retries_max",
        help: "Retries of a failed store request, with growing, jittered pauses.",
        example: "",
        set: |c, t| parsed(&mut c.store.retries_max, t, "a whole number"),
        get: |c| Some(c.store.retries_max.to_string()),
    },
    Setting {
        key: "store.retry_timeout",
        help: "Longest time from a store request's first attempt to the start of its last one.",
        example: "",
        set: |c, t| duration(&mut c.store.retry_timeout, t),
        get: |c| duration_text(c.store.retry_timeout),
    },
    Setting {
        key: "cache.directory",
        help: "Hot index and spool of this replica. Only a cache: may be deleted while the service is down.",
        example: "",
        set: |c, t| {
            c.cache.directory = PathBuf::from(t);
            if t.is_empty() { Err("must not be empty".to_owned()) } else { Ok(()) }
        },
        get: |c| quoted(c.cache.directory.to_string_lossy()),
    },
    Setting {
        key: "cache.index_memory",
        help: "Memory of the hot index: a third for pages of its database, the rest for about 90 bytes per chunk.",
        example: "",
        set: |c, t| bytes(&mut c.cache.index_memory_bytes, t),
        get: |c| bytes_text(c.cache.index_memory_bytes),
    },
    hot::MEMORY,
    hot::DISK,
    hot::DIRECTORY,
    hot::POLICY,
    hot::TENANT_SHARE,
    hot::READ_AHEAD,
    Setting {
        key: "upload.chunk_size_max",
        help: "Largest accepted chunk object.",
        example: "",
        set: |c, t| bytes(&mut c.storage.chunk_bytes_max, t),
        get: |c| bytes_text(c.storage.chunk_bytes_max),
    },
    Setting {
        key: "upload.memory",
        help: "Memory for unfinished uploads; beyond it they are written to the cache directory.",
        example: "",
        set: |c, t| {
            let mut size = 0;
            bytes(&mut size, t)?;
            c.storage.spool_memory_bytes = size as usize;
            Ok(())
        },
        get: |c| bytes_text(c.storage.spool_memory_bytes as u64),
    },
    Setting {
        key: "lookup.negative_ttl",
        help: "How long a miss in the store is remembered before the store is asked again; 0s: not at all.",
        example: "",
        set: |c, t| duration(&mut c.storage.negative_ttl, t),
        get: |c| duration_text(c.storage.negative_ttl),
    },
    Setting {
        key: "lookup.probe_chunk_tokens",
        help: "Chunk length in tokens that a lookup tries first in the store; a multiple of 256.",
        example: "",
        set: |c, t| {
            positive(&mut c.storage.probe_chunk_tokens, t)?;
            let multiple = c.storage.probe_chunk_tokens.is_multiple_of(kvasir_types::CHUNK_TOKENS_STEP);
            if multiple { Ok(()) } else { Err("must be a multiple of 256".to_owned()) }
        },
        get: |c| Some(c.storage.probe_chunk_tokens.to_string()),
    },
    Setting {
        key: "lookup.parallel",
        help: "Maximum concurrent store requests of one lookup.",
        example: "",
        set: |c, t| positive(&mut c.storage.lookup_parallel, t),
        get: |c| Some(c.storage.lookup_parallel.to_string()),
    },
    Setting {
        key: "gc.interval",
        help: "Interval between garbage collection passes; 0s: this replica does not collect.",
        example: "",
        set: |c, t| duration(&mut c.gc.interval, t),
        get: |c| duration_text(c.gc.interval),
    },
    Setting {
        key: "gc.grace",
        help: "Time from a removal to the deletion of the bytes: at least the longest load.",
        example: "",
        set: |c, t| duration(&mut c.gc.policy.grace, t),
        get: |c| duration_text(c.gc.policy.grace),
    },
    Setting {
        key: "gc.tombstone_retention",
        help: "Time from the deletion of the bytes to that of the tombstone: longer than any pause of a process.",
        example: "",
        set: |c, t| {
            duration(&mut c.gc.policy.tombstone_retention, t)?;
            let sound = c.gc.policy.tombstone_retention >= limits::TOMBSTONE_RETENTION_MIN;
            let problem = "must be at least 1m: a garbage collection pass stops deleting after that time";
            if sound { Ok(()) } else { Err(problem.to_owned()) }
        },
        get: |c| duration_text(c.gc.policy.tombstone_retention),
    },
    Setting {
        key: "gc.ttl",
        help: "Age at which chunks are removed; 0s: never.",
        example: "",
        set: |c, t| {
            let mut ttl = Duration::ZERO;
            duration(&mut ttl, t)?;
            c.gc.policy.ttl = Some(ttl).filter(|ttl| !ttl.is_zero());
            Ok(())
        },
        get: |c| duration_text(c.gc.policy.ttl.unwrap_or_default()),
    },
    Setting {
        key: "gc.capacity",
        help: "Maximum bytes of chunk objects in the store; 0B: no limit. Must be equal on all replicas.",
        example: "",
        set: |c, t| {
            let mut size = 0;
            bytes_or_none(&mut size, t)?;
            c.gc.policy.capacity_bytes = Some(size).filter(|&size| size > 0);
            Ok(())
        },
        get: |c| bytes_text(c.gc.policy.capacity_bytes.unwrap_or(0)),
    },
    Setting {
        key: "gc.eviction",
        help: "Eviction policy above gc.capacity: adaptive or lru.",
        example: "",
        set: |c, t| {
            c.gc.policy.eviction = t.parse().map_err(|e: ParsePolicyError| e.to_string())?;
            Ok(())
        },
        get: |c| quoted(c.gc.policy.eviction.name()),
    },
    Setting {
        key: "gc.leftovers_age",
        help: "Age at which leftovers of killed writers are deleted: files of a directory, unfinished uploads in parts of a bucket.",
        example: "",
        set: |c, t| duration(&mut c.gc.policy.leftovers_age, t),
        get: |c| duration_text(c.gc.policy.leftovers_age),
    },
    Setting {
        key: "gc.actions_per_second",
        help: "Tombstones and deletions per second; 0: no limit.",
        example: "",
        set: |c, t| parsed(&mut c.gc.policy.actions_per_second, t, "a whole number"),
        get: |c| Some(c.gc.policy.actions_per_second.to_string()),
    },
    Setting {
        key: "gc.dry_run",
        help: "Only count and log what would be deleted.",
        example: "",
        set: |c, t| parsed(&mut c.gc.policy.dry_run, t, "true or false"),
        get: |c| Some(c.gc.policy.dry_run.to_string()),
    },
    Setting {
        key: "scrub.interval",
        help: "Interval between scrubs, which verify every object against its name; 0s: this replica does not scrub.",
        example: "",
        set: |c, t| duration(&mut c.scrub.interval, t),
        get: |c| duration_text(c.scrub.interval),
    },
    Setting {
        key: "scrub.rate",
        help: "Bytes per second that the repeated scrub reads. Scrubs at a request set their own limit.",
        example: "",
        set: |c, t| bytes(&mut c.scrub.bytes_per_second, t),
        get: |c| bytes_text(c.scrub.bytes_per_second),
    },
    Setting {
        key: "journal.interval",
        help: "Interval between journal batches, and between reads of other replicas' batches under traffic; 0s: no journal.",
        example: "",
        set: |c, t| duration(&mut c.journal.interval, t),
        get: |c| duration_text(c.journal.interval),
    },
    Setting {
        key: "journal.retention",
        help: "Age at which journal batches of stored chunks are deleted; those of removals are kept as long as tombstones.",
        example: "",
        set: |c, t| duration(&mut c.gc.policy.journal_retention, t),
        get: |c| duration_text(c.gc.policy.journal_retention),
    },
    Setting {
        key: "direct.enabled",
        help: "Whether clients may read and write S3 directly with presigned URLs.",
        example: "",
        set: |c, t| parsed(&mut c.storage.direct.enabled, t, "true or false"),
        get: |c| Some(c.storage.direct.enabled.to_string()),
    },
    Setting {
        key: "direct.url_ttl",
        help: "Lifetime of a presigned URL; at most gc.grace, and 168h for S3.",
        example: "",
        set: |c, t| duration(&mut c.storage.direct.url_ttl, t),
        get: |c| duration_text(c.storage.direct.url_ttl),
    },
    Setting {
        key: "direct.upload_ttl",
        help: "Age at which a direct upload without a commit is deleted.",
        example: "",
        set: |c, t| duration(&mut c.storage.direct.upload_ttl, t),
        get: |c| duration_text(c.storage.direct.upload_ttl),
    },
    Setting {
        key: "log.filter",
        help: "Log filter: error, warn, info, debug, or per module: info,kvasir_storage=debug.",
        example: "",
        set: |c, t| {
            c.log.filter = t.to_owned();
            let filter = tracing_subscriber::EnvFilter::builder().parse(t);
            filter.map(|_| ()).map_err(|e| format!("{t:?} is not a log filter: {e}"))
        },
        get: |c| quoted(&c.log.filter),
    },
    Setting {
        key: "log.format",
        help: "Format of the log: text or json.",
        example: "",
        set: |c, t| {
            c.log.format = match t {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                _ => return Err(format!("{t:?} is neither text nor json")),
            };
            Ok(())
        },
        get: |c| quoted(if c.log.format == LogFormat::Json { "json" } else { "text" }),
    },
];
