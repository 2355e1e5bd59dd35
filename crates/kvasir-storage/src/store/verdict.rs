//! What a result says about the store: whether it answered, and whether asking again could help.

use object_store::Error;

/// How the store took a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It answered, if only with a refusal: asking again gives the same.
    Answer,
    /// It failed or could not be reached; whether a write took effect is unknown.
    Fault,
}

/// Why a request was not made, or not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Too many requests are under way.
    #[error("too many requests to the store wait already; send the request again later")]
    Busy,
    /// The breaker is open.
    #[error("the store has failed every request for a while and is left alone; send the request again later")]
    Open,
    /// The store did not answer in time.
    #[error("the store did not answer within {0:?}")]
    Deadline(std::time::Duration),
    /// The store's body came too slowly.
    #[error("the store's answer stalled")]
    Stalled,
    /// The store's body was shorter than it said.
    #[error("the store's answer ended early")]
    Short,
    /// The store's body was longer than it said.
    #[error("the store sent more bytes than asked for")]
    Long,
    /// What is there now is not what an answer began with.
    #[error("the object changed while it was read")]
    Changed,
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Generic { store: "kvasir", source: Box::new(refusal) }
    }
}

impl Refusal {
    /// The refusal behind an error, where there is one.
    pub fn of(error: &Error) -> Option<Self> {
        let Error::Generic { source, .. } = error else { return None };
        source.downcast_ref().copied()
    }
}

impl Verdict {
    pub(super) fn of<T>(result: &object_store::Result<T>) -> Self {
        let Err(Error::Generic { store, source }) = result else { return Self::Answer };
        // A local disk that is full or gone is so at the next attempt, too.
        if *store == "LocalFileSystem" {
            return Self::Answer;
        }
        match status(&**source) {
            Some(408 | 429) | None => Self::Fault,
            Some(status) if status >= 500 && status != 501 => Self::Fault,
            // An error in the body of a 200: S3's way to fail late.
            Some(200) => Self::Fault,
            Some(_) => Self::Answer,
        }
    }
}

/// Whether the store does not know this kind of request at all.
pub(super) fn is_not_implemented(error: &Error) -> bool {
    match error {
        Error::NotImplemented { .. } => true,
        Error::Generic { source, .. } => status(&**source) == Some(501),
        _ => false,
    }
}

/// The HTTP status behind an error. `object_store` keeps the type that knows it to itself, and prints it.
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
    fn only_what_may_pass_is_a_fault() {
        for (text, expected) in [
            ("Server returned non-2xx status code: 503 Service Unavailable: SlowDown", Verdict::Fault),
            ("Server returned non-2xx status code: 500 Internal Server Error: ", Verdict::Fault),
            ("Server returned non-2xx status code: 429 Too Many Requests: ", Verdict::Fault),
            ("Server returned error response: <Error><Code>InternalError", Verdict::Fault),
            ("error sending request: connection reset", Verdict::Fault),
            ("Server returned non-2xx status code: 400 Bad Request: ", Verdict::Answer),
            ("Server returned non-2xx status code: 416 Range Not Satisfiable: ", Verdict::Answer),
            ("Server returned non-2xx status code: 501 Not Implemented: ", Verdict::Answer),
        ] {
            assert_eq!(Verdict::of(&generic("S3", text)), expected, "{text}");
        }
        assert_eq!(Verdict::of(&generic("LocalFileSystem", "No space left on device")), Verdict::Answer);
        let gone = Error::NotFound { path: "x".to_owned(), source: "y".into() };
        assert_eq!(Verdict::of::<()>(&Err(gone)), Verdict::Answer);
        assert_eq!(Verdict::of(&Ok(())), Verdict::Answer);
        assert_eq!(Refusal::of(&Refusal::Busy.into()), Some(Refusal::Busy));
    }
}
