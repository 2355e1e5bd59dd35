//! Settings of the S3 front end.

use super::{Setting, parsed, quoted};

pub(super) const LISTEN: Setting = Setting {
    key: "s3.listen",
    help: "Address and port for S3 clients, which store objects by key; uses TLS if the service does.",
    example: "\"0.0.0.0:7482\"",
    set: |c, t| parsed(c.server.s3_listen.insert(c.server.listen), t, "an address such as 127.0.0.1:7482"),
    get: |c| c.server.s3_listen.and_then(|address| quoted(address.to_string())),
};

pub(super) const DOMAINS: Setting = Setting {
    key: "s3.domains",
    help: "Domains whose subdomains are buckets, separated by commas; otherwise the path begins with the bucket.",
    example: "\"s3.kvasir.svc\"",
    set: |c, t| {
        c.server.s3_domains = t.split(',').map(|domain| domain.trim().to_owned()).collect();
        s3s::host::MultiDomain::new(&c.server.s3_domains).map(drop).map_err(|error| error.to_string())
    },
    get: |c| (!c.server.s3_domains.is_empty()).then(|| quoted(c.server.s3_domains.join(","))).flatten(),
};
