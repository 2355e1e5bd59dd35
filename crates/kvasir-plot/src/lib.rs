//! Self-contained HTML reports: one file, inline SVG, no script, no external resource.
//!
//! Everything here is a pure function of the data it is given, so a report can be made again from the JSON
//! of a run and tests can compare text. Colours are CSS variables; the page follows the reader's light or
//! dark setting.

#![forbid(unsafe_code)]

mod bars;
pub mod markup;
mod page;
mod plot;
mod scale;

pub use bars::{Bar, Bars};
pub use page::{Figure, Page, Table};
pub use plot::{Axis, Guide, Mark, Place, Plot, Point, Series, Side};
pub use scale::number;

#[cfg(test)]
mod tests;
