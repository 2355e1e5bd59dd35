//! Checks of an engine's side, for its tests: the feature `testing`.

mod page_checks;
mod page_store;
mod values;

pub use page_store::{PageStoreFault, TestedPages, check_page_store};
