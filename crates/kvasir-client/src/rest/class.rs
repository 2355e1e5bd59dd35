//! Request classes: the service keeps data that is likely to be reused in its hot tier.

use std::num::NonZeroU32;

use kvasir_api::{HEADER_REQUEST_TYPE, HEADER_TURN};
use kvasir_types::Name;
use reqwest::RequestBuilder;

/// The class of an engine's request, sent with all its requests to the service. The service infers omitted
/// fields. It is a hint for eviction and read-ahead, and changes no response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestClass {
    /// Its type: `text`, `file`, `search`, `agent`, …
    pub kind: Option<Name>,
    /// Its turn in its conversation, from 1.
    pub turn: Option<NonZeroU32>,
}

impl RequestClass {
    /// A request of a type, in a turn that the service infers.
    pub const fn of(kind: Name) -> Self {
        Self { kind: Some(kind), turn: None }
    }

    /// The same in turn `turn`, counted from 1; with 0 the service infers it.
    #[must_use]
    pub const fn in_turn(mut self, turn: u32) -> Self {
        self.turn = NonZeroU32::new(turn);
        self
    }

    pub(super) fn apply(&self, mut request: RequestBuilder) -> RequestBuilder {
        if let Some(kind) = &self.kind {
            request = request.header(HEADER_REQUEST_TYPE, kind.as_str());
        }
        if let Some(turn) = self.turn {
            request = request.header(HEADER_TURN, turn.get());
        }
        request
    }
}
