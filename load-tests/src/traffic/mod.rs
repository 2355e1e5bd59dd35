//! Requests: when they are due, what they are, and what became of them.

pub(crate) mod arrivals;
pub(crate) mod objects;
pub(crate) mod open_loop;
pub(crate) mod record;
pub(crate) mod tenant;
