//! Links with a given bandwidth: series over time, and a TCP proxy that follows one.

mod proxy;
mod series;
mod shaper;

pub use proxy::{LinkOptions, RETRANSMIT, ShapedLink};
pub use series::{BadLine, BandwidthSeries, SERIES_POINTS_MAX, SeriesError};
pub use shaper::Shaper;

#[cfg(test)]
mod tests;
