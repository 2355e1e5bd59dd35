#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod index;
pub mod layout;
pub mod limits;
pub mod observe;
mod secret;
pub mod store;

pub use secret::Secret;
