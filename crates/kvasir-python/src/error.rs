//! Errors as exceptions of `kvasir.errors`.

use std::{fmt::Display, sync::Arc};

use kvasir_codec::{DecodeError, EncodeError, ProfileError, container::ContainerError};
use kvasir_dump::DumpError;
use kvasir_train::TrainError;
use kvasir_types::{SpecError, hf::HfError};
use pyo3::prelude::*;

/// A failure before its conversion to an exception.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the client.
    Client(kvasir_client::Error),
    /// The same, shared by several waiting callers.
    Shared(Arc<kvasir_client::Error>),
    /// Unusable input.
    Input { code: &'static str, message: String, remedy: &'static str },
    /// Data that is damaged, or belongs to something else.
    Data { code: &'static str, message: String, remedy: &'static str },
    /// The process was forked.
    Forked,
    /// The caller's time limit has passed.
    Late,
    /// A Python exception.
    Python(PyErr),
}

impl Failure {
    pub(crate) fn input(code: &'static str, message: impl Display, remedy: &'static str) -> Self {
        Self::Input { code, message: message.to_string(), remedy }
    }

    fn data(code: &'static str, message: impl Display, remedy: &'static str) -> Self {
        Self::Data { code, message: message.to_string(), remedy }
    }
}

macro_rules! from {
    ($($error:ty => $error_name:ident $answer:expr;)*) => {
        $(impl From<$error> for Failure {
            fn from($error_name: $error) -> Self {
                $answer
            }
        })*
    };
}

from! {
    kvasir_client::Error => error Self::Client(error);
    PyErr => error Self::Python(error);
    SpecError => error Self::input("invalid_model_spec", error, "correct the spec");
    HfError => error Self::input(
        "invalid_config", error, "state what the config leaves open with weights=, revision=, kv_dtype=, pairing=, context="
    );
    EncodeError => error Self::input("not_encodable", error, "check the KV, its tokens and the profile");
    DecodeError => error {
        let remedy = match error {
            DecodeError::NoSuchLevel { .. } => "choose one of the object's levels",
            _ => "use the profile and the whole object it was encoded to",
        };
        Self::data("not_decodable", error, remedy)
    };
    ContainerError => error Self::data("invalid_object", error, "fetch or encode the object again");
    ProfileError => error Self::data("invalid_profile", error, "use a profile that was trained for this model");
    DumpError => error Self::data("invalid_dump", error, "write the dump again as described in the README of kvasir-dump");
    TrainError => error {
        let remedy = match error {
            TrainError::NotTransparent { .. } => {
                "give more contexts, use the recipe direct, or state a larger error with finest_nmse= and load with a lower quality="
            }
            _ => "give more contexts, or another recipe",
        };
        Self::input("not_trainable", error, remedy)
    };
}

/// Class, code, remedy, whether a retry may succeed, HTTP status.
type Description = (&'static str, String, String, bool, Option<u16>);

fn describe(error: &kvasir_client::Error) -> Description {
    use kvasir_client::Error;
    let (class, code, status) = match error {
        Error::Api(api) => {
            let class = if matches!(api.status, 401 | 403) { "AuthError" } else { "ServiceError" };
            (class, api.code.as_str(), Some(api.status))
        }
        Error::Transport(_) | Error::Slow { .. } => ("UnavailableError", "unavailable", None),
        Error::Profile(_) => ("DataError", "invalid_profile", None),
        Error::Config { .. } => ("InputError", "invalid_setting", None),
        Error::Spec(_) => ("InputError", "invalid_model_spec", None),
        Error::Encode { .. } => ("InputError", "not_encodable", None),
        Error::Starter(_) => ("InputError", "no_first_profile", None),
        _ => ("KvasirError", "internal", None),
    };
    (class, code.to_owned(), error.remedy().to_owned(), error.is_retryable(), status)
}

fn exception(
    py: Python<'_>,
    message: String,
    (class, code, remedy, retryable, status): Description,
) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let class = py.import("kvasir.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call1((message, code, remedy, retryable, status))?))
    };
    make().unwrap_or_else(|error| error)
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let own = |class, code: &str, message: String, remedy: &str| {
            let description = (class, code.to_owned(), remedy.to_owned(), false, None);
            Python::attach(|py| exception(py, message, description))
        };
        match failure {
            Failure::Python(error) => error,
            Failure::Client(error) => Python::attach(|py| exception_of(py, &error)),
            Failure::Shared(error) => Python::attach(|py| exception_of(py, &error)),
            Failure::Input { code, message, remedy } => own("InputError", code, message, remedy),
            Failure::Data { code, message, remedy } => own("DataError", code, message, remedy),
            Failure::Late => own(
                "UnavailableError",
                "late",
                "the service did not respond within the given time".to_owned(),
                "check the service and the network, or allow more time",
            ),
            Failure::Forked => own(
                "ForkError",
                "forked",
                "this process was forked from one that uses kvasir, without its threads".to_owned(),
                "start processes with spawn (multiprocessing.set_start_method(\"spawn\")), or use kvasir only after the fork",
            ),
        }
    }
}

/// The stable code of an error of the client.
pub(crate) fn code_of(error: &kvasir_client::Error) -> String {
    describe(error).1
}

/// The exception of a failed lookup, for inspection.
pub(crate) fn exception_of(py: Python<'_>, error: &kvasir_client::Error) -> PyErr {
    exception(py, error.to_string(), describe(error))
}
