//! The API, one module per resource.

pub(super) mod admin;
pub(crate) mod body;
pub(super) mod chunks;
pub(super) mod conditional;
pub(super) mod config;
pub(super) mod contexts;
pub(super) mod events;
pub(super) mod explain;
pub(crate) mod hint;
pub(super) mod loads;
pub(super) mod lookup;
pub(super) mod members;
pub(super) mod models;
pub(super) mod namespaces;
pub(super) mod objects;
mod path;
pub(super) mod plan;
pub(super) mod profiles;
mod selection;
pub(super) mod series;
pub(super) mod trainings;
pub(super) mod uploads;
pub(super) mod write_objects;
