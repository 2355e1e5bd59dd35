//! Settings of limits per client and tenant, and of keys.

use std::path::PathBuf;

use super::{Setting, bytes, bytes_or_none, bytes_text, parsed, path, path_text, secret_text};
use crate::limits;

pub(super) const CONNECTIONS_PER_ADDRESS: Setting = Setting {
    key: "server.connections_per_address",
    help: "Maximum connections per client address; further ones are closed. 0: no limit, for a service behind a load balancer.",
    example: "",
    set: |c, t| parsed(&mut c.server.connections_per_address, t, "a whole number"),
    get: |c| Some(c.server.connections_per_address.to_string()),
};

pub(super) const CONNECTION_MEMORY: Setting = Setting {
    key: "server.connection_memory",
    help: "Maximum memory of one connection's buffers; up to eight times that for HTTP/2, which has many streams.",
    example: "",
    set: |c, t| {
        bytes(&mut c.server.connection_memory_bytes, t)?;
        let range = limits::CONNECTION_MEMORY_BYTES_MIN..=limits::CONNECTION_MEMORY_BYTES_MAX;
        let sound = range.contains(&c.server.connection_memory_bytes);
        if sound { Ok(()) } else { Err("must be 128KiB to 16MiB".to_owned()) }
    },
    get: |c| bytes_text(c.server.connection_memory_bytes),
};

pub(super) const EGRESS: Setting = Setting {
    key: "server.egress_per_second",
    help: "Response bytes per second that this replica can send, shared equally by its tenants, and among a tenant's loads by deadline; 0B: unknown, not shared.",
    example: "",
    set: |c, t| bytes_or_none(&mut c.server.egress_bytes_per_second, t),
    get: |c| bytes_text(c.server.egress_bytes_per_second),
};

pub(super) const KEYS_FILE: Setting = Setting {
    key: "encryption.keys_file",
    help: "Keys of tenants whose chunks are encrypted at rest, as TOML; reloaded when the file changes.",
    example: "\"/etc/kvasir/keys.toml\"",
    set: |c, t| path(c.keys_file.insert(PathBuf::new()), t),
    get: |c| c.keys_file.as_deref().and_then(path_text),
};

pub(super) const KEYS: Setting = Setting {
    key: "encryption.keys",
    help: "The keys themselves instead of encryption.keys_file, as tenant:id:key separated by commas; prefer KVASIR_ENCRYPTION_KEYS to a configuration file.",
    example: "\"team-a:2026-11:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\"",
    set: |c, t| {
        c.keys = Some(t.to_owned().into());
        kvasir_store::seal::FileKeys::parse_list(t).map(|_| ())
    },
    get: |c| secret_text(&c.keys),
};
