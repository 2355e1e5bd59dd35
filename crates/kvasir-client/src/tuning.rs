//! How loads decide and what the save queue takes: policies, estimators, cost models. The defaults are meant to be kept; this is
//! for studies, tools, and engines that measure better.

pub use crate::{
    fetcher::*,
    kvasir::StoredKv,
    load::{CostModels, LoadOptions},
    model::{ProfileState, StoredProfile, stored_profiles},
    save::{AdmissionPolicy, DropPolicy, QueueConfig, QueueStats},
};
