//! Authenticates requests against the configured credentials.

use std::{
    net::{IpAddr, Ipv6Addr},
    path::Path,
};

use axum::http::{HeaderMap, HeaderValue, header};
use kvasir_api::Role;
use kvasir_store::Secret;
use kvasir_types::Name;

use super::{
    failure_limiter::FailureLimiter,
    jwt::Verifier,
    principal::Principal,
    tenants::{Quota, Tenants},
};
use crate::{config::Config, limits, metrics::ReloadedFiles, reload::ReloadableFiles};

/// Why authentication failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthFailure {
    /// No credential, or not in the form `Bearer …`.
    Missing,
    /// An unknown credential, or one that is not valid now.
    Invalid,
    /// Too many refused credentials from this address.
    RateLimited,
    /// A browser sends it for a page of another address, to a service that needs no credential.
    OtherPage,
    /// `Host` does not name loopback, although nothing else can reach the service.
    OtherHost,
}

impl AuthFailure {
    /// Label of metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::RateLimited => "rate_limited",
            Self::OtherPage => "other_page",
            Self::OtherHost => "other_host",
        }
    }

    /// What the caller can do about it.
    pub(crate) const fn detail(self) -> &'static str {
        match self {
            Self::Missing => "send the credential as `Authorization: Bearer …`",
            Self::Invalid => "the credential is unknown to this service or not valid now",
            Self::RateLimited => "too many refused credentials from this address; wait a minute",
            Self::OtherPage => "pages of other addresses may not use this service",
            Self::OtherHost => {
                "this service needs no credential and answers only to localhost and loopback addresses; for \
                 other names configure credentials, or set server.allow_unauthenticated = true"
            }
        }
    }
}

/// Checks the credentials of requests.
#[derive(Debug)]
pub(crate) struct Authenticator {
    tenants: Option<ReloadableFiles<Tenants>>,
    jwt: Option<Verifier>,
    failure_limiter: FailureLimiter,
    /// `server.allow_unauthenticated`: more than loopback may reach a service that needs no credential.
    allow_unauthenticated: bool,
}

impl Authenticator {
    /// Reads the files of `config`.
    ///
    /// # Errors
    /// Setting, file and problem: at start an unusable file is fatal; later the last good one stays in force.
    pub(crate) fn open(config: &Config) -> Result<Self, String> {
        let allow_unauthenticated = config.server.allow_unauthenticated;
        let config = &config.auth;
        let tenants = config.tenants_file.as_deref().map(|path| {
            ReloadableFiles::open(&[path], |files| Tenants::parse(&files[0]))
                .map_err(|problem| unusable("auth.tenants_file", path, &problem))
        });
        let jwt = config.jwt.as_ref().map(|jwt| {
            Verifier::open(jwt).map_err(|problem| unusable("auth.jwks_file", &jwt.jwks_file, &problem))
        });
        let failure_limiter = FailureLimiter::new(config.failures_per_minute);
        Ok(Self {
            tenants: tenants.transpose()?,
            jwt: jwt.transpose()?,
            failure_limiter,
            allow_unauthenticated,
        })
    }

    /// Whether requests need no credential.
    fn allows_anonymous(&self) -> bool {
        self.tenants.is_none() && self.jwt.is_none()
    }

    /// Reads files that have changed. An unusable file is reported, and the previous contents stay in force.
    pub(crate) fn reload(&self) {
        if let Some(tenants) = &self.tenants {
            tenants.reload();
        }
        if let Some(jwt) = &self.jwt {
            jwt.reload();
        }
    }

    /// For each kind of files, whether they have changed and cannot be used.
    pub(crate) fn rejected_files(&self) -> [(ReloadedFiles, bool); 2] {
        [
            (ReloadedFiles::Tenants, self.tenants.as_ref().is_some_and(ReloadableFiles::is_rejected)),
            (ReloadedFiles::Jwks, self.jwt.as_ref().is_some_and(Verifier::has_rejected_files)),
        ]
    }

    /// The quota of a tenant.
    pub(crate) fn quota(&self, tenant: &Name) -> Quota {
        self.tenants.as_ref().map(|tenants| tenants.get().quota(tenant)).unwrap_or_default()
    }

    /// Whether any tenant has a limit on stored data.
    pub(crate) fn has_stored_quotas(&self) -> bool {
        self.tenants.as_ref().is_some_and(|tenants| tenants.get().has_stored_quotas())
    }

    /// The principal of an S3 access key and the key's secret, unless it has expired.
    pub(crate) fn access_key(&self, id: &str) -> Option<(Principal, Secret)> {
        match &self.tenants {
            Some(tenants) => tenants.get().access_key(id),
            None if id == ANYONE && self.allows_anonymous() => {
                Some((anonymous_principal(), ANYONE.to_owned().into()))
            }
            None => None,
        }
    }

    /// Refuses what a browser sends for a page of another address, where requests need no credential. A page
    /// whose name is made to resolve to this machine (DNS rebinding) is known by that name in `Host`.
    ///
    /// # Errors
    /// [`AuthFailure::OtherPage`] and [`AuthFailure::OtherHost`].
    pub(crate) fn check_page(&self, headers: &HeaderMap) -> Result<(), AuthFailure> {
        if !self.allows_anonymous() {
            return Ok(());
        }
        // HTTP/2 has no `Host`; browsers speak it to named hosts only with a certificate for the name.
        let Some(host) = headers.get(header::HOST) else { return Ok(()) };
        if !self.allow_unauthenticated && !is_loopback(host) {
            return Err(AuthFailure::OtherHost);
        }
        let page = headers.get(header::ORIGIN).map(HeaderValue::as_bytes);
        let is_other = |page: &[u8]| {
            page.strip_prefix(b"http://").or(page.strip_prefix(b"https://")) != Some(host.as_bytes())
        };
        if page.is_some_and(is_other) { Err(AuthFailure::OtherPage) } else { Ok(()) }
    }

    /// The principal of a request without a credential, if none is required.
    pub(crate) fn anonymous(&self) -> Option<Principal> {
        self.allows_anonymous().then(anonymous_principal)
    }

    /// The principal of a request with `headers` from `peer`.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<Principal, AuthFailure> {
        self.check_page(headers)?;
        if let Some(anyone) = self.anonymous() {
            return Ok(anyone);
        }
        let Some(credential) = bearer(headers) else { return Err(AuthFailure::Missing) };
        if let Some(principal) = self.token(credential) {
            return Ok(principal);
        }
        // A known token costs one hash and is always accepted; clients that guess are limited before the
        // costlier signature check. Those behind the same balancer, whose tokens were valid before, are not.
        let is_known = self.jwt.as_ref().is_some_and(|jwt| jwt.was_accepted(credential));
        if !is_known && peer.is_some_and(|peer| self.failure_limiter.is_limited(peer)) {
            return Err(AuthFailure::RateLimited);
        }
        if let Some(principal) = self.web_token(credential) {
            return Ok(principal);
        }
        if let Some(peer) = peer {
            self.failure_limiter.record_failure(peer);
        }
        Err(AuthFailure::Invalid)
    }

    /// The credential of a request, for re-checks during the request; `None` if none is required.
    pub(crate) fn credential(&self, headers: &HeaderMap) -> Option<Secret> {
        let credential = bearer(headers).filter(|_| !self.allows_anonymous());
        credential.map(|credential| credential.to_owned().into())
    }

    /// Whether a credential still authenticates as `principal`.
    pub(crate) fn is_in_force(&self, credential: &Secret, principal: &Principal) -> bool {
        let credential = credential.expose();
        self.token(credential).or_else(|| self.web_token(credential)).as_ref() == Some(principal)
    }

    /// Like [`is_in_force`](Self::is_in_force), for an S3 access key, whose secret may be replaced under its id.
    pub(crate) fn is_access_key_in_force(&self, id: &str, secret: &Secret, principal: &Principal) -> bool {
        self.access_key(id).is_some_and(|(now, current)| now == *principal && current == *secret)
    }

    fn token(&self, credential: &str) -> Option<Principal> {
        self.tenants.as_ref().and_then(|tenants| tenants.get().principal(credential))
    }

    fn web_token(&self, credential: &str) -> Option<Principal> {
        self.jwt.as_ref().and_then(|jwt| jwt.principal(credential))
    }
}

fn unusable(setting: &str, path: &Path, problem: &str) -> String {
    format!("{setting}: {}: {problem}", path.display())
}

/// Whether `host`, with or without a port, names loopback: a literal address, `localhost` or a name under it
/// (RFC 6761 §6.3).
fn is_loopback(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    if let Some((literal, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return literal.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback());
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name).to_ascii_lowercase();
    let is_address = name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || name == "localhost" || name.ends_with(".localhost")
}

/// The credential of requests to a service without authentication; also its access key and secret, for S3
/// clients that require one.
const ANYONE: &str = "anyone";

/// The principal of every request to a service without authentication, which only loopback can reach. All
/// data belongs to one tenant.
fn anonymous_principal() -> Principal {
    let tenant = "default".parse().unwrap_or_else(|_| unreachable!("a constant of the alphabet"));
    Principal { tenant, role: Role::Operator, credential: ANYONE.into() }
}

/// The credential of `Authorization: Bearer …`, within its length limit.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credential) = value.split_once(' ')?;
    let fits = (1..=limits::CREDENTIAL_BYTES_MAX).contains(&credential.len());
    (scheme.eq_ignore_ascii_case("bearer") && fits).then_some(credential)
}
