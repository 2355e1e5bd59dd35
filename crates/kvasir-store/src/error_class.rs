//! Classifies the store's errors: whether the store responded, and whether a retry could help.

use object_store::Error;

/// Whether a retry of a request could help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    /// The store responded, if only with an error: the same request gets the same response.
    Definitive,
    /// The store failed or could not be reached; whether a write took effect is unknown.
    Transient,
}

/// Why a call to the store failed on this side: it was not made, timed out, or had a wrong body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Too many requests are in flight.
    #[error("too many requests to the store are already waiting; send the request again later")]
    Busy,
    /// The breaker is open.
    #[error("the store has been failing every request, so requests are paused; send the request again later")]
    Open,
    /// The store did not respond in time.
    #[error("the store did not respond within {0:?}")]
    Deadline(std::time::Duration),
    /// The store's body arrived too slowly.
    #[error("the store's response stalled")]
    Stalled,
    /// The store's body was shorter than declared.
    #[error("the store's response ended early")]
    Short,
    /// The store's body was longer than declared.
    #[error("the store sent more bytes than requested")]
    Long,
    /// The object is no longer the one that the response began with.
    #[error("the object changed while it was being read")]
    Changed,
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        Self::Generic { store: "kvasir", source: Box::new(error) }
    }
}

impl CallError {
    /// The call error behind a store's error, if there is one.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        let Error::Generic { source, .. } = error else { return None };
        source.downcast_ref().copied()
    }
}

impl ErrorClass {
    pub(crate) fn of<T>(result: &object_store::Result<T>) -> Self {
        let Err(Error::Generic { store, source }) = result else { return Self::Definitive };
        // A full or failed local disk fails the next attempt as well.
        if *store == "LocalFileSystem" {
            return Self::Definitive;
        }
        match status(&**source) {
            Some(408 | 429) | None => Self::Transient,
            Some(status) if status >= 500 && status != 501 => Self::Transient,
            // An error in the body of a 200: S3's late failure.
            Some(200) => Self::Transient,
            Some(_) => Self::Definitive,
        }
    }
}

/// Whether the store does not implement this kind of request.
pub(crate) fn is_not_implemented(error: &Error) -> bool {
    match error {
        Error::NotImplemented { .. } => true,
        Error::Generic { source, .. } => status(&**source) == Some(501),
        _ => false,
    }
}

/// The HTTP status behind an error. `object_store` keeps the type that contains it private, but prints it.
fn status(error: &(dyn std::error::Error + 'static)) -> Option<u16> {
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if text.starts_with("Server returned error response") {
            return Some(200);
        }
        if let Some((_, rest)) = text.split_once("status code: ") {
            return rest.get(..3).and_then(|digits| digits.parse().ok());
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(store: &'static str, text: &str) -> object_store::Result<()> {
        Err(Error::Generic { store, source: text.into() })
    }

    #[test]
    fn only_what_may_pass_is_transient() {
        for (text, expected) in [
            ("Server returned non-2xx status code: 503 Service Unavailable: SlowDown", ErrorClass::Transient),
            ("Server returned non-2xx status code: 500 Internal Server Error: ", ErrorClass::Transient),
            ("Server returned non-2xx status code: 429 Too Many Requests: ", ErrorClass::Transient),
            ("Server returned error response: <Error><Code>InternalError", ErrorClass::Transient),
            ("error sending request: connection reset", ErrorClass::Transient),
            ("Server returned non-2xx status code: 400 Bad Request: ", ErrorClass::Definitive),
            ("Server returned non-2xx status code: 416 Range Not Satisfiable: ", ErrorClass::Definitive),
            ("Server returned non-2xx status code: 501 Not Implemented: ", ErrorClass::Definitive),
        ] {
            assert_eq!(ErrorClass::of(&generic("S3", text)), expected, "{text}");
        }
        assert_eq!(
            ErrorClass::of(&generic("LocalFileSystem", "No space left on device")),
            ErrorClass::Definitive
        );
        let gone = Error::NotFound { path: "x".to_owned(), source: "y".into() };
        assert_eq!(ErrorClass::of::<()>(&Err(gone)), ErrorClass::Definitive);
        assert_eq!(ErrorClass::of(&Ok(())), ErrorClass::Definitive);
        assert_eq!(CallError::of(&CallError::Busy.into()), Some(CallError::Busy));
    }
}
