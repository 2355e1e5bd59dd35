//! The service over HTTP: what a client sees, on a free port.

mod auth;
mod binary;
mod contexts;
mod direct;
mod events;
mod explain;
mod hot;
mod hot_trace;
mod openapi;
mod rest;
mod uploads;
