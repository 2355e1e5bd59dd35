//! The service over HTTP: what a client sees, on a free port.

mod binary;
mod rest;
mod uploads;
