//! Tuning of loads and of the save queue: policies, estimators, cost models. The defaults suit most users;
//! this is for studies, tools, and engines with better measurements.

pub use crate::{
    fetcher::*,
    kvasir::StoredKv,
    load::{CostModels, LoadOptions, decoding_cores},
    model::{ProfileState, StoredProfile, stored_profiles},
    save::{QueueConfig, QueueStats},
};
