//! Scenarios of load and faults.

pub(crate) mod durability;
pub(crate) mod fault;
pub(crate) mod inject;
pub(crate) mod outcome;
pub(crate) mod page;
pub(crate) mod remote;
pub(crate) mod requests;
pub(crate) mod run;
pub(crate) mod spec;
