//! The model that a command works with.

use std::path::Path;

use kvasir_cli::{
    error::{CliError, CliResult},
    shipped,
};
use kvasir_engine::Model;

/// The model of a name: the shipped one, or a folder's.
pub(crate) fn model(name: &str) -> CliResult<Model> {
    if name == "kvasir-tiny" {
        return shipped::model();
    }
    Model::load(Path::new(name)).map_err(|error| CliError::data(Path::new(name), error))
}
