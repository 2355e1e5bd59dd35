//! Settings of the hot tier.

use super::{Setting, bytes_or_none, bytes_text, parsed, quoted};

pub(super) const MEMORY: Setting = Setting {
    key: "hot.memory",
    help: "Memory for frequently read data; 0 together with hot.disk = 0 disables the hot tier.",
    example: "",
    set: |c, t| bytes_or_none(&mut c.hot.memory_bytes, t),
    get: |c| bytes_text(c.hot.memory_bytes),
};

pub(super) const DISK: Setting = Setting {
    key: "hot.disk",
    help: "Local disk for data that does not fit into memory; 0: none. Unset: 4 GiB, or none if the store is a directory.",
    example: "\"4GiB\"",
    set: |c, t| bytes_or_none(c.hot.disk_bytes.insert(0), t),
    get: |c| c.hot.disk_bytes.and_then(bytes_text),
};

pub(super) const DIRECTORY: Setting = Setting {
    key: "hot.directory",
    help: "Directory of the hot tier's disk; default <cache.directory>/hot. Only a cache: may be deleted while the service is down.",
    example: "\"/mnt/nvme/kvasir-hot\"",
    set: |c, t| {
        c.hot.directory = Some(t.into());
        if t.is_empty() { Err("must not be empty".to_owned()) } else { Ok(()) }
    },
    get: |c| c.hot.directory.as_ref().and_then(|path| quoted(path.to_string_lossy())),
};

pub(super) const POLICY: Setting = Setting {
    key: "hot.policy",
    help: "Eviction policy: adaptive or lru.",
    example: "",
    set: |c, t| {
        c.hot.policy = t.parse().map_err(|e: kvasir_eviction::ParsePolicyError| e.to_string())?;
        Ok(())
    },
    get: |c| quoted(c.hot.policy.name()),
};

pub(super) const TENANT_SHARE: Setting = Setting {
    key: "hot.tenant_share",
    help: "Per cent of memory and of disk that one tenant may use; no tenant is evicted below an equal share.",
    example: "",
    set: |c, t| {
        parsed(&mut c.hot.tenant_share_percent, t, "a number of per cent")?;
        let sound = (1..=100).contains(&c.hot.tenant_share_percent);
        if sound { Ok(()) } else { Err("must be 1 to 100".to_owned()) }
    },
    get: |c| Some(c.hot.tenant_share_percent.to_string()),
};

pub(super) const READ_AHEAD: Setting = Setting {
    key: "hot.read_ahead",
    help: "Number of chunks to read ahead of a read, in the order of the lookup; 0: none.",
    example: "",
    set: |c, t| parsed(&mut c.hot.read_ahead_chunks, t, "a whole number"),
    get: |c| Some(c.hot.read_ahead_chunks.to_string()),
};
