//! Test support for engines: the feature `testing`.

mod device_checks;
mod page_checks;
mod page_store;
mod server;
mod values;

pub use page_store::{PageStoreFault, TestedPages, check_page_store};
pub use server::{Fault, Server};
