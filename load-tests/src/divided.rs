//! The pages of `load-tests/bytes --where`: what the CPU time of a path goes to.

use std::collections::BTreeMap;

use kvasir_plot::{Bar, Bars, Page};
use serde::Deserialize;

use crate::report;

/// An operation at one size: its cost, and what the functions do that `perf` sampled meanwhile.
#[derive(Debug, Deserialize)]
pub(crate) struct DividedPath {
    /// The operation and the size.
    path: String,
    /// CPU seconds of the service a GB, which are nanoseconds a byte.
    cpu_s_a_gb: f64,
    load_average: f64,
    /// Shares of the samples, by what the sampled function does.
    divided: BTreeMap<String, f64>,
}

impl DividedPath {
    pub(crate) fn page(&self) -> String {
        let Self { path, cpu_s_a_gb: total, load_average, divided } = self;
        let lede = format!(
            "{total:.3} CPU seconds of the service a GB, or nanoseconds a byte, at a load average of {load_average:.1}."
        );
        let mut page = Page::new(&format!("{path}: where the CPU time goes"), &lede);
        let mut kinds: Vec<(&String, f64)> = divided.iter().map(|(kind, share)| (kind, *share)).collect();
        kinds.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let bar = |(kind, share): (&String, f64)| Bar {
            label: kind.clone(),
            value: share * total,
            text: format!("{:.3} ({:.0} %)", share * total, share * 100.0),
            ours: true,
        };
        let description = format!("{path}: nanoseconds a byte by what the sampled functions do");
        let bars = kinds.into_iter().map(bar).collect();
        let caption = "Nanoseconds a byte: the shares of perf's samples, of the median cost.";
        page.drawing(&Bars { description, bars, limit: None }.to_svg(), caption);
        page.finish(report::FOOTER)
    }
}

#[cfg(test)]
mod tests {
    use kvasir_plot::markup::check_markup;

    use super::*;

    #[test]
    fn a_path_is_drawn_by_what_costs_most() {
        let json = r#"{"path": "PUT 16 MB", "cpu_s_a_gb": 1.5, "load_average": 0.4,
            "divided": {"checksums": 0.1, "hashing": 0.6, "disk": 0.3}}"#;
        let page = serde_json::from_str::<DividedPath>(json).unwrap().page();
        check_markup(&page).unwrap();
        let places = ["0.900 (60 %)", "0.450 (30 %)", "0.150 (10 %)"].map(|text| page.find(text).unwrap());
        assert!(places.is_sorted());
    }
}
