//! Where requests go, and as whom.

/// URLs of the replicas, and tokens of the tenants.
#[derive(Debug, Clone)]
pub(crate) struct Endpoints {
    /// Of the replicas, without a slash at the end.
    pub(crate) urls: Vec<String>,
    /// One for each tenant; none where nobody is asked who they are.
    pub(crate) tokens: Vec<String>,
}
