//! Bandwidth over time.

use std::{fmt, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

/// Most points of one series: a day at 10 Hz.
pub const SERIES_POINTS_MAX: usize = 864_000;
/// Longest predicted time of a transfer; a slower link is dead.
const TIME_MAX: Duration = Duration::from_secs(86_400 * 365);

/// A link's bandwidth over time: piecewise constant, repeated from the start when it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct BandwidthSeries {
    set: String,
    name: String,
    /// The end of each piece, in seconds, and its rate in bytes per second; ends increase.
    pieces: Vec<(f64, f64)>,
}

/// A series file or series that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// The file cannot be read.
    #[error("cannot read the bandwidth series {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Lines that are not valid series. All of them are named.
    #[error("{} of the file's lines are not valid bandwidth series: {}", .0.len(), list(.0))]
    Lines(Vec<BadLine>),
    /// No line held a series.
    #[error(
        "the file holds no bandwidth series: it needs one JSON object per line, {{\"unit\":\"Mbps\",\"t\":[…],\"bw\":[…]}}"
    )]
    Empty,
}

/// A line that is not a valid series, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Counted from 1.
    pub line: usize,
    /// The reason.
    pub why: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

fn list(lines: &[BadLine]) -> String {
    lines.iter().map(BadLine::to_string).collect::<Vec<_>>().join("; ")
}

#[derive(Debug, Serialize, Deserialize)]
struct Row {
    #[serde(default)]
    set: String,
    #[serde(default)]
    name: String,
    unit: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dt: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    t: Option<Vec<f64>>,
    bw: Vec<f64>,
}

impl BandwidthSeries {
    /// A link with a constant `mbps` megabits per second; `None` unless that is a positive finite number.
    pub fn constant(mbps: f64) -> Option<Self> {
        Self::from_samples("constant", &format!("{mbps} Mb/s"), &[0.0], 1.0, &[mbps]).ok()
    }

    /// Steps of `dt` seconds with the given rates in megabits per second.
    ///
    /// # Errors
    /// What is wrong with the numbers.
    pub fn steps(set: &str, name: &str, dt: f64, mbps: &[f64]) -> Result<Self, String> {
        let times: Vec<f64> = (0..mbps.len()).map(|i| i as f64 * dt).collect();
        Self::from_samples(set, name, &times, dt, mbps)
    }

    /// `mbps[i]` holds from `times[i]` to the next time; the last holds for `last` seconds.
    fn from_samples(set: &str, name: &str, times: &[f64], last: f64, mbps: &[f64]) -> Result<Self, String> {
        if mbps.is_empty() || mbps.len() > SERIES_POINTS_MAX {
            return Err(format!("it has {} points; it must have 1 to {SERIES_POINTS_MAX}", mbps.len()));
        }
        if times.len() != mbps.len() {
            return Err(format!("`t` has {} entries, but `bw` has {}", times.len(), mbps.len()));
        }
        if let Some(bad) = mbps.iter().find(|b| !b.is_finite() || **b < 0.0) {
            return Err(format!("a bandwidth of {bad} is not valid"));
        }
        if mbps.iter().all(|&b| b == 0.0) {
            return Err("its bandwidth is zero throughout".into());
        }
        let first = times.first().copied().unwrap_or(0.0);
        let ends: Vec<f64> =
            times.iter().skip(1).copied().chain(times.last().map(|t| t + last)).map(|t| t - first).collect();
        let increasing =
            ends.iter().try_fold(0.0, |before, &end| (end.is_finite() && end > before).then_some(end));
        if increasing.is_none() {
            return Err("its times do not increase".into());
        }
        let pieces = ends.into_iter().zip(mbps.iter().map(|b| b * 1e6 / 8.0)).collect();
        Ok(Self { set: set.to_owned(), name: name.to_owned(), pieces })
    }

    /// Reads series, one JSON object a line: `{set, name, unit, bw: […]}` with times in seconds as `t: […]`
    /// or one `dt`; `unit` is one of bps, Kbps, Mbps, Gbps. Blank lines are skipped.
    ///
    /// # Errors
    /// [`SeriesError::Lines`] names every line that is no series.
    pub fn parse_jsonl(text: &str) -> Result<Vec<Self>, SeriesError> {
        let (mut series, mut bad) = (Vec::new(), Vec::new());
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match Self::parse_line(line) {
                Ok(one) => series.push(one),
                Err(why) => bad.push(BadLine { line: i + 1, why }),
            }
        }
        match (bad.is_empty(), series.is_empty()) {
            (false, _) => Err(SeriesError::Lines(bad)),
            (true, true) => Err(SeriesError::Empty),
            (true, false) => Ok(series),
        }
    }

    /// Reads a file of series.
    ///
    /// # Errors
    /// [`SeriesError`], naming the file or the lines.
    pub fn read_file(path: &Path) -> Result<Vec<Self>, SeriesError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SeriesError::Read { path: path.display().to_string(), source })?;
        Self::parse_jsonl(&text)
    }

    fn parse_line(line: &str) -> Result<Self, String> {
        let row: Row = serde_json::from_str(line).map_err(|e| e.to_string())?;
        let mbps_per_unit = match row.unit.to_ascii_lowercase().as_str() {
            "bps" => 1e-6,
            "kbps" => 1e-3,
            "mbps" => 1.0,
            "gbps" => 1e3,
            _ => return Err(format!("unit {:?} is not one of bps, Kbps, Mbps, Gbps", row.unit)),
        };
        let mbps: Vec<f64> = row.bw.iter().map(|b| b * mbps_per_unit).collect();
        match (row.t, row.dt) {
            (Some(t), _) => {
                let last = match t.as_slice() {
                    [.., a, b] => b - a,
                    _ => row.dt.unwrap_or(1.0),
                };
                Self::from_samples(&row.set, &row.name, &t, last, &mbps)
            }
            (None, Some(dt)) => Self::steps(&row.set, &row.name, dt, &mbps),
            (None, None) => Err("it has neither `t` nor `dt`".into()),
        }
    }

    /// The series that the project ships, written by `examples/generate_series.rs`: `drop-recover` (1 Gb/s, down
    /// to 100 Mb/s, and back), `jitter` (a cross-traffic-like walk between 80 and 800 Mb/s) and `sawtooth` (a link
    /// shared with a batch job), of the set `kvasir`; and the sets `wireless` (fades), `wan` (long level changes)
    /// and `cloud` (steady, with heavy dips).
    pub fn all_builtin() -> Vec<Self> {
        Self::parse_jsonl(include_str!("../../assets/series.jsonl")).unwrap_or_default()
    }

    /// One of [`Self::all_builtin`].
    pub fn builtin(name: &str) -> Option<Self> {
        Self::all_builtin().into_iter().find(|series| series.name == name)
    }

    /// The set it belongs to.
    pub fn set(&self) -> &str {
        &self.set
    }

    /// Its name within the set.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length of one repetition, in seconds.
    pub fn period(&self) -> f64 {
        self.pieces.last().map_or(1.0, |&(end, _)| end)
    }

    /// Mean rate over one repetition, in megabits per second.
    pub fn mean_mbps(&self) -> f64 {
        self.period_bytes() / self.period() * 8.0 / 1e6
    }

    /// The same shape with every rate times `factor` (positive and finite, else unchanged).
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        if factor.is_finite() && factor > 0.0 {
            self.pieces.iter_mut().for_each(|(_, rate)| *rate *= factor);
        }
        self
    }

    /// The same shape with another mean.
    #[must_use]
    pub fn scaled_to_mean(self, mbps: f64) -> Self {
        let factor = mbps / self.mean_mbps();
        self.scaled(factor)
    }

    /// The same series, started `offset` seconds into it.
    #[must_use]
    pub fn starting_at(mut self, offset: f64) -> Self {
        let offset = offset.rem_euclid(self.period());
        let split = self.pieces.partition_point(|&(end, _)| end <= offset);
        let period = self.period();
        let (before, after) = self.pieces.split_at(split);
        let rest = after.iter().map(|&(end, rate)| (end - offset, rate));
        let mut pieces: Vec<_> =
            rest.chain(before.iter().map(|&(end, rate)| (end - offset + period, rate))).collect();
        if let Some(&(_, rate)) = after.first()
            && offset > before.last().map_or(0.0, |&(end, _)| end)
        {
            pieces.push((period, rate));
        }
        self.pieces = pieces;
        self
    }

    /// Megabits per second at `t` since the start.
    pub fn mbps_at(&self, t: Duration) -> f64 {
        let (index, _) = self.locate(t.as_secs_f64());
        self.pieces.get(index).map_or(0.0, |&(_, rate)| rate * 8.0 / 1e6)
    }

    /// When `bytes` that enter at `start` have left, with no other traffic on the link.
    pub fn time_after(&self, start: Duration, bytes: u64) -> Duration {
        let mut left = bytes as f64;
        let whole = (left / self.period_bytes()).floor();
        left -= whole * self.period_bytes();
        let mut t = start.as_secs_f64();
        let (mut index, mut at) = self.locate(t);
        t += whole * self.period();
        while left > 0.0 {
            let Some(&(end, rate)) = self.pieces.get(index) else { break };
            let room = (end - at) * rate;
            if room >= left {
                t += left / rate;
                break;
            }
            left -= room;
            t += end - at;
            (index, at) = if index + 1 == self.pieces.len() { (0, 0.0) } else { (index + 1, end) };
        }
        Duration::try_from_secs_f64(t).unwrap_or(TIME_MAX).max(start)
    }

    /// Bytes that fit through from `start` to `end`.
    pub fn bytes_between(&self, start: Duration, end: Duration) -> u64 {
        (self.bytes_until(end.as_secs_f64()) - self.bytes_until(start.as_secs_f64())).max(0.0) as u64
    }

    fn bytes_until(&self, t: f64) -> f64 {
        let (index, at) = self.locate(t);
        let whole = ((t - at) / self.period()).round();
        let mut start = 0.0;
        let mut sum = whole * self.period_bytes();
        for &(end, rate) in self.pieces.iter().take(index) {
            sum += (end - start) * rate;
            start = end;
        }
        sum + self.pieces.get(index).map_or(0.0, |&(_, rate)| (at - start) * rate)
    }

    fn period_bytes(&self) -> f64 {
        let starts = std::iter::once(0.0).chain(self.pieces.iter().map(|&(end, _)| end));
        starts.zip(&self.pieces).map(|(start, &(end, rate))| (end - start) * rate).sum()
    }

    /// The piece that holds `t` and the time within the repetition.
    fn locate(&self, t: f64) -> (usize, f64) {
        let at = t.rem_euclid(self.period());
        let index = self.pieces.partition_point(|&(end, _)| end <= at);
        if index == self.pieces.len() { (0, 0.0) } else { (index, at) }
    }

    /// As one line of a series file: steps of the first piece's length.
    pub fn to_jsonl(&self) -> String {
        let starts = std::iter::once(0.0).chain(self.pieces.iter().map(|&(end, _)| end));
        let row = Row {
            set: self.set.clone(),
            name: self.name.clone(),
            unit: "Mbps".into(),
            dt: None,
            t: Some(starts.take(self.pieces.len()).collect()),
            bw: self.pieces.iter().map(|&(_, rate)| rate * 8.0 / 1e6).collect(),
        };
        serde_json::to_string(&row).unwrap_or_default()
    }
}
