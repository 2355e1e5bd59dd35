//! The service over HTTP: what a client sees, on a free port.

mod auth;
mod binary;
mod hot;
mod hot_trace;
mod rest;
mod uploads;
