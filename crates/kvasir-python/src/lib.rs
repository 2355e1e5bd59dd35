#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![allow(clippy::needless_pass_by_value, reason = "Python's arguments come by value")]

mod codec;
mod error;
#[allow(unsafe_code, reason = "memory of Python's tensors; every block has its proof")]
mod memory;
mod model;
mod objects;
mod profile;
mod runtime;
mod spec;
mod store;
mod tensors;

use pyo3::prelude::*;
use serde::Serialize;

use crate::error::Failure;

/// Threads that wait for the network and decode; the codec has its own pool.
const RUNTIME_WORKERS: usize = 2;

/// A response as JSON: the package builds its own types from it.
fn json(answer: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(answer).map_err(|error| {
        Failure::input("internal", format!("a response cannot be serialised: {error}"), "report it")
    })
}

/// The extension module. Users import the package `kvasir` built on it.
#[pymodule]
mod _kvasir {
    use super::*;

    #[pymodule_export]
    use super::{
        codec::{decode, encode, inspect, plan_json, tokens_of},
        model::{Lookup, Model, Save, Session},
        objects::Objects,
        profile::Profile,
        spec::Spec,
        store::{Events, Store, connect},
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        threads.worker_threads(RUNTIME_WORKERS).thread_name("kvasir").enable_all();
        pyo3_async_runtimes::tokio::init(threads);
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
