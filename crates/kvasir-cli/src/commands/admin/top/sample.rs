//! One sample of a service's metrics.

use std::collections::BTreeMap;

/// Values by metric name and labels, parsed from the Prometheus text format.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sample(BTreeMap<String, Vec<Line>>);

#[derive(Debug, Clone, PartialEq)]
struct Line {
    labels: Vec<(String, String)>,
    value: f64,
}

impl Sample {
    /// Parses the text. Skips lines in an unknown form: a newer service may have them.
    pub(super) fn parse(text: &str) -> Self {
        let mut sample = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse() else { continue };
            let (name, labels) = match name.split_once('{') {
                Some((name, labels)) => (name, self::labels(labels.trim_end_matches('}'))),
                None => (name, Vec::new()),
            };
            sample.0.entry(name.to_owned()).or_default().push(Line { labels, value });
        }
        sample
    }

    /// The sum of a metric over all lines that have these labels.
    pub(super) fn sum(&self, name: &str, wanted: &[(&str, &str)]) -> f64 {
        let lines = self.0.get(name).into_iter().flatten();
        let has = |line: &&Line| {
            wanted.iter().all(|(key, value)| line.labels.iter().any(|(k, v)| k == key && v == value))
        };
        lines.filter(has).map(|line| line.value).sum()
    }

    /// The sums of a metric by one of its labels.
    pub(super) fn by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for line in self.0.get(name).into_iter().flatten() {
            if let Some((_, value)) = line.labels.iter().find(|(key, _)| key == label) {
                *sums.entry(value.clone()).or_default() += line.value;
            }
        }
        sums
    }
}

fn labels(text: &str) -> Vec<(String, String)> {
    let pairs = text.split("\",").filter_map(|pair| pair.split_once("=\""));
    pairs.map(|(key, value)| (key.trim().to_owned(), value.trim_end_matches('"').to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format_is_read() {
        let text =
            "# TYPE a counter\na{x=\"1\",y=\"p,q\"} 3\na{x=\"2\",y=\"r\"} 4.5\nb 7\nnonsense\nc NaN?\n";
        let sample = Sample::parse(text);
        assert_eq!(sample.sum("a", &[]), 7.5);
        assert_eq!(sample.sum("a", &[("x", "2")]), 4.5);
        assert_eq!(sample.sum("a", &[("y", "p,q")]), 3.0);
        assert_eq!(sample.sum("b", &[]), 7.0);
        assert_eq!(sample.sum("nothing", &[]), 0.0);
        assert_eq!(sample.by("a", "x"), [("1".to_owned(), 3.0), ("2".to_owned(), 4.5)].into());
    }
}
