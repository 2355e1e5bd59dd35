//! Each tenant's quota on a replica: requests per second, concurrent requests, bytes sent per second.
//!
//! Rates are token buckets that hold one second's worth. Bytes are charged as they are sent, so one response
//! may overdraw; the next request then waits until the debt is paid.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, HttpBody},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use kvasir_api::{ErrorCode, Problem};
use kvasir_types::Name;
use parking_lot::Mutex;

use crate::{api_error::ApiError, auth::Quota};

/// Enforces the request and egress quotas of tenants.
#[derive(Debug, Default)]
pub(crate) struct QuotaLimiter(Mutex<HashMap<Name, Arc<Mutex<TenantMeter>>>>);

/// A bucket that fills at `rate` per second up to one second's worth.
#[derive(Debug, Clone, Copy)]
struct TokenBucket {
    level: f64,
    at: Instant,
}

#[derive(Debug)]
struct TenantMeter {
    requests: TokenBucket,
    egress: TokenBucket,
    in_flight: u32,
}

/// The limit that a request exceeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct QuotaExceeded {
    /// As in the tenants file.
    pub(crate) limit: &'static str,
    retry_after: Duration,
}

/// A request within its quota; ends with the last byte of its response.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    meter: Arc<Mutex<TenantMeter>>,
    is_egress_limited: bool,
}

impl TokenBucket {
    fn full(rate: f64) -> Self {
        Self { level: rate, at: Instant::now() }
    }

    /// Seconds until the bucket holds `wanted`; takes it if it holds that much now.
    fn take(&mut self, rate: f64, wanted: f64) -> Result<(), Duration> {
        let now = Instant::now();
        self.level = (self.level + rate * now.duration_since(self.at).as_secs_f64()).min(rate.max(1.0));
        self.at = now;
        if self.level >= wanted {
            self.level -= wanted;
            return Ok(());
        }
        let wait = (wanted - self.level) / rate.max(1e-3);
        Err(Duration::from_secs_f64(wait.clamp(0.0, 3600.0)))
    }
}

impl QuotaLimiter {
    /// Admits a request of `tenant` if `quota` allows; a tenant without limits is not counted.
    ///
    /// # Errors
    /// The first limit that is exceeded.
    pub(crate) fn admit(&self, tenant: &Name, quota: &Quota) -> Result<Option<RequestPermit>, QuotaExceeded> {
        if (quota.requests_per_second, quota.requests_at_once, quota.egress_bytes_per_second)
            == (None, None, None)
        {
            return Ok(None);
        }
        let requests = f64::from(quota.requests_per_second.unwrap_or(u32::MAX));
        let egress = quota.egress_bytes_per_second.map(|rate| rate as f64);
        let meter = {
            let mut meters = self.0.lock();
            let new = || {
                let egress = TokenBucket::full(egress.unwrap_or(0.0));
                Arc::new(Mutex::new(TenantMeter {
                    requests: TokenBucket::full(requests),
                    egress,
                    in_flight: 0,
                }))
            };
            Arc::clone(meters.entry(tenant.clone()).or_insert_with(new))
        };
        {
            let over = |limit, retry_after| QuotaExceeded { limit, retry_after };
            let mut meter = meter.lock();
            if quota.requests_at_once.is_some_and(|max| meter.in_flight >= max) {
                return Err(over("requests_at_once", Duration::from_secs(1)));
            }
            if let Some(rate) = egress {
                meter.egress.take(rate, 0.0).map_err(|wait| over("egress_bytes_per_second", wait))?;
            }
            if quota.requests_per_second.is_some() {
                meter.requests.take(requests, 1.0).map_err(|wait| over("requests_per_second", wait))?;
            }
            meter.in_flight += 1;
        }
        Ok(Some(RequestPermit { meter, is_egress_limited: egress.is_some() }))
    }
}

impl RequestPermit {
    /// The response; its bytes are charged as they are sent.
    pub(crate) fn charge(self, response: Response) -> Response {
        let (parts, body) = response.into_parts();
        if body.is_end_stream() {
            return Response::from_parts(parts, body);
        }
        let is_exact = body.size_hint().exact();
        let stream = self.metered(body.into_data_stream());
        let mut response = Response::from_parts(parts, Body::from_stream(stream));
        // A stream has no length; without one the response would become chunked.
        if let Some(length) = is_exact {
            response.headers_mut().entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
        }
        response
    }

    fn metered<E>(self, body: impl Stream<Item = Result<Bytes, E>>) -> impl Stream<Item = Result<Bytes, E>> {
        body.map(move |part| {
            if let (true, Ok(part)) = (self.is_egress_limited, &part) {
                self.meter.lock().egress.level -= part.len() as f64;
            }
            part
        })
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut meter = self.meter.lock();
        meter.in_flight = meter.in_flight.saturating_sub(1);
    }
}

impl IntoResponse for QuotaExceeded {
    fn into_response(self) -> Response {
        let detail = format!(
            "the tenant exceeds its limit {}; send the request again in {:.1} s",
            self.limit,
            self.retry_after.as_secs_f64()
        );
        let mut response = ApiError::from(Problem::new(ErrorCode::Throttled, detail)).into_response();
        let seconds = self.retry_after.as_secs_f64().ceil().max(1.0) as u64;
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Name {
        name.parse().expect("a name")
    }

    #[test]
    fn one_tenant_s_limits_are_not_another_s() {
        let limiter = QuotaLimiter::default();
        let tight = Quota { requests_per_second: Some(2), ..Quota::default() };
        let over = (0..3).map(|_| limiter.admit(&tenant("a"), &tight).err()).collect::<Vec<_>>();
        assert_eq!((over[0], over[1]), (None, None));
        let exceeded = over[2].expect("a third request in no time");
        assert_eq!(exceeded.limit, "requests_per_second");
        assert!(exceeded.retry_after <= Duration::from_millis(500));
        assert!(limiter.admit(&tenant("b"), &tight).is_ok());
    }

    #[test]
    fn requests_at_once_end_with_their_answers() {
        let limiter = QuotaLimiter::default();
        let one = Quota { requests_at_once: Some(1), ..Quota::default() };
        let first = limiter.admit(&tenant("a"), &one).expect("the first").expect("a limit");
        assert_eq!(limiter.admit(&tenant("a"), &one).err().map(|e| e.limit), Some("requests_at_once"));
        let answer = first.charge(Response::new(Body::from("bytes that are not sent yet")));
        assert!(limiter.admit(&tenant("a"), &one).is_err());
        drop(answer);
        assert!(limiter.admit(&tenant("a"), &one).is_ok());
    }

    #[tokio::test]
    async fn bytes_are_owed_once_sent() {
        let limiter = QuotaLimiter::default();
        let quota = Quota { egress_bytes_per_second: Some(1000), ..Quota::default() };
        let permit = limiter.admit(&tenant("a"), &quota).expect("nothing is owed").expect("a limit");
        let answer = permit.charge(Response::new(Body::from(vec![0; 5000])));
        assert_eq!(answer.headers()[header::CONTENT_LENGTH], "5000");
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.expect("reads");
        assert_eq!(body.len(), 5000);
        let exceeded = limiter.admit(&tenant("a"), &quota).expect_err("4 seconds are owed");
        assert_eq!(exceeded.limit, "egress_bytes_per_second");
        assert!((3.5..=4.0).contains(&exceeded.retry_after.as_secs_f64()), "{exceeded:?}");
    }
}
