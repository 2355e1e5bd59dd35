//! What requests are for: the service keeps ready what such requests use again.

use std::num::NonZeroU32;

use kvasir_api::{HEADER_REQUEST_TYPE, HEADER_TURN};
use kvasir_types::Name;
use reqwest::RequestBuilder;

/// The class of an engine's request, sent along with all that it asks of the service. The service infers what is left
/// out; it is a hint for eviction and read-ahead, and changes no answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestClass {
    /// Its type: `text`, `file`, `search`, `agent`, …
    pub kind: Option<Name>,
    /// Its turn in its conversation, from 1.
    pub turn: Option<NonZeroU32>,
}

impl RequestClass {
    /// A request of a type, in a turn that the service shall infer.
    pub const fn of(kind: Name) -> Self {
        Self { kind: Some(kind), turn: None }
    }

    /// The same in turn `turn`, counted from 1; 0 leaves it to the service.
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
