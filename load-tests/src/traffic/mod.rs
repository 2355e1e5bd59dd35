//! Requests: their times, their kinds, and their results.

pub(crate) mod arrivals;
pub(crate) mod objects;
pub(crate) mod open_loop;
pub(crate) mod record;
pub(crate) mod tenant;
