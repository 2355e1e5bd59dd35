//! The addresses and credentials of requests.

/// URLs of the replicas, and tokens of the tenants.
#[derive(Debug, Clone)]
pub(crate) struct Endpoints {
    /// Of the replicas, without a slash at the end.
    pub(crate) urls: Vec<String>,
    /// One per tenant; none if the service requires no credentials.
    pub(crate) tokens: Vec<String>,
}
