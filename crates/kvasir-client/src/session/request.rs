//! Opening a session.

use std::{num::NonZeroU32, pin::Pin};

use kvasir_types::Name;

use super::Session;
use crate::{Deadline, Kvasir, kvasir::BindingKey, rest::RequestClass};

/// A session that is not open yet: `await` opens it and looks its tokens up.
#[derive(Debug)]
#[must_use = "a session is opened by `await`"]
pub struct SessionRequest<'a> {
    pub(super) kvasir: Kvasir,
    pub(super) tokens: &'a [u32],
    pub(super) class: RequestClass,
    pub(super) key: BindingKey,
    pub(super) deadline: Deadline,
    pub(super) looks_up: bool,
}

impl Kvasir {
    /// Opens a session for a token sequence: `kvasir.session(&tokens).await` looks it up. Set the request's
    /// class, salt and adapter in between: `kvasir.session(&tokens).salt(user).await`.
    pub fn session<'a>(&self, tokens: &'a [u32]) -> SessionRequest<'a> {
        SessionRequest::new(self.clone(), tokens)
    }
}

impl<'a> SessionRequest<'a> {
    fn new(kvasir: Kvasir, tokens: &'a [u32]) -> Self {
        let (class, key) = (kvasir.rest().class().clone(), BindingKey::default());
        let deadline = Deadline::none();
        Self { kvasir, tokens, class, key, deadline, looks_up: true }
    }

    /// Type of the request: `text`, `file`, `search`, `agent`, … The service keeps data that such requests
    /// reuse, and infers omitted fields.
    pub fn class(mut self, kind: Name) -> Self {
        self.class.kind = Some(kind);
        self
    }

    /// The request's turn in its conversation, from 1; with 0 the service infers it.
    pub const fn turn(mut self, turn: u32) -> Self {
        self.class.turn = NonZeroU32::new(turn);
        self
    }

    /// A secret of the users who may share this cache: sessions with another salt, or without one, never
    /// match it.
    pub fn salt(mut self, salt: impl Into<Vec<u8>>) -> Self {
        self.key.salt = Some(salt.into());
        self
    }

    /// The adapter (LoRA) that the model runs with: a name together with a digest of its weights.
    pub fn adapter(mut self, adapter: impl Into<String>) -> Self {
        self.key.adapter = Some(adapter.into());
        self
    }

    /// Skips the lookup, for a session that only saves. Saves do their own lookup.
    pub const fn without_lookup(mut self) -> Self {
        self.looks_up = false;
        self
    }

    /// Time limit of the lookup. A lookup that exceeds it is a miss.
    pub const fn deadline(mut self, deadline: Deadline) -> Self {
        self.deadline = deadline;
        self
    }
}

impl<'a> IntoFuture for SessionRequest<'a> {
    type Output = Session;
    type IntoFuture = Pin<Box<dyn Future<Output = Session> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(Session::open(self))
    }
}
