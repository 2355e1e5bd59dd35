//! Quantities on the command line: a number with its unit.

/// Parses bits per second, as in `3gbit`, `2.5Gbit/s` or `400MB/s`. Prefixes are decimal; case matters only
/// for the `B` of bytes.
///
/// # Errors
/// A text that lists the units.
pub(crate) fn bandwidth(text: &str) -> Result<f64, String> {
    let units =
        "a bandwidth needs a unit per second: bit, kbit, mbit, gbit, tbit, kB, MB or GB (3gbit, 400MB/s)";
    let (number, unit) = split(text);
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    let (prefix, bits) = match unit.strip_suffix('B') {
        Some(prefix) => (prefix.to_lowercase(), 8.0),
        None => match unit.to_lowercase().strip_suffix("bit") {
            Some(prefix) => (prefix.to_owned(), 1.0),
            None => return Err(units.to_owned()),
        },
    };
    let scale = match prefix.as_str() {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        _ => return Err(units.to_owned()),
    };
    positive(number, scale * bits, units)
}

/// Parses seconds, as in `250ms`, `1s` or `2m`.
///
/// # Errors
/// A text that lists the units.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let units = "a time needs a unit: us, ms, s or m (250ms, 1s)";
    let (number, unit) = split(text);
    let scale = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(units.to_owned()),
    };
    positive(number, scale, units)
}

/// Parses a number above 0.
///
/// # Errors
/// A text that says so.
pub(crate) fn above_zero(text: &str) -> Result<f64, String> {
    positive(text, 1.0, "a number above 0 is needed")
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

fn positive(number: &str, scale: f64, units: &str) -> Result<f64, String> {
    let value = number.parse::<f64>().map_err(|_| units.to_owned())? * scale;
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err("must be above 0".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        for (text, bits) in [
            ("3gbit", 3e9),
            ("2.5Gbit/s", 2.5e9),
            ("10Gbps", f64::NAN),
            ("100 Mbit", 1e8),
            ("400MB/s", 3.2e9),
            ("8bit", 8.0),
        ] {
            match bandwidth(text) {
                Ok(found) => assert_eq!(found, bits, "{text}"),
                Err(error) => assert!(bits.is_nan() && error.contains("gbit"), "{text}: {error}"),
            }
        }
        assert_eq!(seconds("1s"), Ok(1.0));
        assert_eq!(seconds("250ms"), Ok(0.25));
        for bare in ["1", "0.5", "", "s", "1.2.3s", "1h", "-1s"] {
            assert!(seconds(bare).is_err(), "{bare}");
        }
        for bare in ["3", "0gbit", "3g", "gbit", "3xbit", "é"] {
            assert!(bandwidth(bare).is_err(), "{bare}");
        }
    }
}
