//! The domains whose subdomains are buckets.

use s3s::{
    S3Result,
    host::{DomainError, MultiDomain, S3Host, VirtualHost},
};

/// Domains whose subdomains are buckets. Under any other host the path begins with the bucket: `s3s` alone would
/// take the whole host for a bucket, and the bucket in the path for the beginning of the key.
pub(super) struct BucketDomains(Vec<String>);

impl BucketDomains {
    /// These domains.
    ///
    /// # Errors
    /// If an entry is not a valid domain, or ends with another one.
    pub(super) fn new(domains: &[String]) -> Result<Self, DomainError> {
        MultiDomain::new(domains)?;
        Ok(Self(domains.to_vec()))
    }
}

impl S3Host for BucketDomains {
    /// A domain without a port is meant on every port.
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let name = host.split_once(':').map_or(host, |(name, _)| name);
        let bucket = self.0.iter().find_map(|domain| {
            let compared = if domain.contains(':') { host } else { name };
            // Names of hosts have no case.
            let (bucket, end) = compared.split_at_checked(compared.len().checked_sub(domain.len())?)?;
            bucket.strip_suffix('.').filter(|_| end.eq_ignore_ascii_case(domain))
        });
        let parsed = VirtualHost::new(host);
        Ok(match bucket {
            Some(bucket) => parsed.with_bucket(bucket),
            None => parsed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subdomains_are_buckets_and_other_hosts_are_not() {
        let domains = ["s3.example.com", "s3.localhost:7482"].map(str::to_owned);
        let domains = BucketDomains::new(&domains).expect("valid");
        let bucket = |host: &str| {
            let parsed = domains.parse_host_header(host).expect("none is refused");
            parsed.bucket().map(str::to_owned)
        };
        for host in [
            "pages.s3.example.com",
            "pages.s3.example.com:7482",
            "pages.S3.Example.com",
            "pages.s3.localhost:7482",
        ] {
            assert_eq!(bucket(host).as_deref(), Some("pages"), "{host}");
        }
        for host in [
            "s3.example.com",
            "s3.example.com:7482",
            "s3.localhost:7482",
            "kvasir",
            "kvasir:7482",
            "kvasir.ns.svc",
            "pages.s3.localhost",
            "pages.s3.localhost:80",
            "pagess3.example.com",
            "[::1]",
        ] {
            assert_eq!(bucket(host), None, "{host}");
        }
        assert!(BucketDomains::new(&["a b".to_owned()]).is_err());
    }
}
