//! The service over HTTP: what a client sees, on a free port.

mod auth;
mod binary;
mod rest;
mod uploads;
