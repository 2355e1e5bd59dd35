#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod blocking;
mod error;
mod fetcher;
mod kvasir;
pub mod limits;
mod load;
mod lookup;
mod model;
pub mod objects;
mod options;
pub mod overlapped;
pub mod pages;
pub mod report;
pub mod rest;
mod save;
mod session;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tuning;

pub use error::Error;
pub use kvasir::{Builder, Kvasir};
pub use load::{LayerReady, Load, Loaded};
pub use options::{Deadline, QualityFloor};
pub use save::SaveTicket;
pub use session::{Session, SessionRequest};
