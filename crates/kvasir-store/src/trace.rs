//! W3C trace context (<https://www.w3.org/TR/trace-context/>): associates work with a distributed trace, and
//! passes it on to the store's requests.
//!
//! The context travels with the task, not through every signature: [`scope`] sets it, [`carry`] takes it
//! along into a spawned task, and [`TracedConnector`] sends it as `traceparent` on every HTTP request to the
//! store, each with a new span id.

use std::fmt;

use async_trait::async_trait;
use object_store::{
    ClientOptions, HeaderValue,
    client::{
        HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
    },
};

/// Name of the header.
pub const TRACEPARENT: &str = "traceparent";
const HEADER_BYTES: usize = 2 + 1 + 32 + 1 + 16 + 1 + 2;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// One span of one trace. Displays as the header's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

impl TraceContext {
    /// A new trace, not sampled.
    pub fn root() -> Self {
        Self { trace_id: rand::random::<u128>().max(1), span_id: rand::random::<u64>().max(1), flags: 0 }
    }

    /// Parses a header. `None` if it is malformed; of a later version, only the parts of version 0 are read.
    pub fn parse(header: &[u8]) -> Option<Self> {
        let (value, rest) = header.split_at_checked(HEADER_BYTES)?;
        let version = hex(value.get(..2)?)?;
        let follows = rest.is_empty() || (version > 0 && rest.starts_with(b"-"));
        let dashes = [2, 35, 52].iter().all(|&at| value.get(at) == Some(&b'-'));
        if version == 0xff || !follows || !dashes {
            return None;
        }
        let (trace_id, span_id) = (hex(value.get(3..35)?)?, hex(value.get(36..52)?)?);
        let flags = hex(value.get(53..)?)?;
        let made = Self { trace_id, span_id: u64::try_from(span_id).ok()?, flags: u8::try_from(flags).ok()? };
        (made.trace_id != 0 && made.span_id != 0).then_some(made)
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn child(self) -> Self {
        Self { span_id: rand::random::<u64>().max(1), ..self }
    }

    /// The trace id as 32 hex digits, as in logs.
    pub fn trace_id(self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// Lower-case hex digits only, as the standard requires.
fn hex(digits: &[u8]) -> Option<u128> {
    let sound = digits.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
    let text = str::from_utf8(digits).ok().filter(|_| sound)?;
    u128::from_str_radix(text, 16).ok()
}

/// Runs `work` as a part of `context`.
pub async fn scope<F: Future>(context: TraceContext, work: F) -> F::Output {
    CURRENT.scope(context, work).await
}

/// The context of this task, if it has one.
pub fn current() -> Option<TraceContext> {
    CURRENT.try_get().ok()
}

/// `work` with this task's context, for a separate task.
pub fn carry<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let context = current();
    async move {
        match context {
            Some(context) => scope(context, work).await,
            None => work.await,
        }
    }
}

/// The store's HTTP client, which adds `traceparent` to requests made for a trace.
#[derive(Debug, Default)]
pub struct TracedConnector(ReqwestConnector);

impl HttpConnector for TracedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Traced(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct Traced(HttpClient);

#[async_trait]
impl HttpService for Traced {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Signatures cover the headers that they name; this one is added after signing.
        if let Some(context) = current()
            && let Ok(value) = HeaderValue::try_from(context.child().to_string())
        {
            request.headers_mut().insert(TRACEPARENT, value);
        }
        self.0.execute(request).await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_standard_s_example() {
        let context = TraceContext::parse(EXAMPLE.as_bytes()).expect("sound");
        assert_eq!(context.to_string(), EXAMPLE);
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let child = context.child();
        assert_eq!((child.trace_id(), child.flags), (context.trace_id(), 1));
        assert_ne!(child.span_id, context.span_id);
    }

    #[test]
    fn what_the_standard_forbids() {
        let zero_trace = format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32));
        let zero_span = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        let upper = EXAMPLE.to_uppercase();
        let longer = format!("{EXAMPLE}-x");
        let forbidden = EXAMPLE.replacen("00", "ff", 1);
        for bad in [&zero_trace, zero_span, &upper, &longer, &forbidden, &EXAMPLE[1..], &EXAMPLE[..54], ""] {
            assert_eq!(TraceContext::parse(bad.as_bytes()), None, "{bad}");
        }
        let later = format!("{}-more", EXAMPLE.replacen("00", "01", 1));
        assert!(TraceContext::parse(later.as_bytes()).is_some());
    }

    proptest! {
        #[test]
        fn contexts_round_trip_and_nothing_panics(bytes: Vec<u8>) {
            let context = TraceContext::root();
            prop_assert_eq!(TraceContext::parse(context.to_string().as_bytes()), Some(context));
            let _ = TraceContext::parse(&bytes);
        }
    }

    #[tokio::test]
    async fn it_goes_along_into_spawned_tasks() {
        let context = TraceContext::root();
        let inside = scope(context, async { tokio::spawn(carry(async { current() })).await });
        assert_eq!(inside.await.expect("no panic"), Some(context));
        assert_eq!(tokio::spawn(carry(async { current() })).await.expect("no panic"), None);
    }
}
