//! The service over HTTP as a client sees it, on a free port.

mod auth;
mod bench;
mod binary;
mod console;
mod contexts;
mod direct;
mod events;
mod explain;
mod guarded;
mod hot_tier;
mod hot_tier_trace;
mod isolation;
mod limits;
mod matrix;
mod objects;
mod openapi;
mod pages_by_key;
mod quota;
mod rest;
mod revoked;
mod s3_front;
mod salts;
mod sequences;
mod thinned;
mod traces;
mod uploads;
