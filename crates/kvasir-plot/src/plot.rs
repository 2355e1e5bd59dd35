//! XY plots: lines, steps, spans and points over one x axis and up to two y axes.

use super::{
    markup::{escape, file, put},
    scale::{Scale, number},
};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 68.0;
const RIGHT: f64 = 64.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;

/// An axis.
#[derive(Debug, Clone, Default)]
pub struct Axis {
    /// Its quantity, with its unit.
    pub label: String,
    /// Logarithmic.
    pub log: bool,
    /// A linear axis that starts at zero even if no value is near zero.
    pub from_zero: bool,
    /// Ticks only at whole numbers `0..=n` (levels).
    pub whole_to: Option<u32>,
}

impl Axis {
    /// A linear axis from zero.
    pub fn from_zero(label: impl Into<String>) -> Self {
        Self { label: label.into(), from_zero: true, ..Self::default() }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Self {
        Self { label: label.into(), log: true, ..Self::default() }
    }

    /// An axis of the whole numbers `0..=n`, with half a step of margin on both sides.
    pub fn whole(label: impl Into<String>, n: u32) -> Self {
        Self { label: label.into(), whole_to: Some(n), ..Self::default() }
    }

    fn scale(&self, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Scale {
        match self.whole_to {
            Some(n) => Scale::exact(-0.5, f64::from(n) + 0.5, from, to),
            None => Scale::fit(values, self.log, self.from_zero, from, to),
        }
    }

    fn ticks(&self, scale: &Scale) -> Vec<f64> {
        match self.whole_to {
            Some(n) => (0..=n).map(f64::from).collect(),
            None => scale.ticks(),
        }
    }
}

/// One value; `x_end` is set if it holds over a range of x.
#[derive(Debug, Clone, Default)]
pub struct Point {
    /// The position on the x axis.
    pub x: f64,
    /// The end of the range, for [`Mark::Spans`].
    pub x_end: f64,
    /// The value.
    pub y: f64,
    /// Text next to it.
    pub label: String,
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Self {
        Self { x, x_end: x, y, label: String::new() }
    }
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A line without dots, for many points. A NaN for y interrupts it.
    Line,
    /// Dots joined by straight lines.
    Joined,
    /// A value holds until the next one; the area below is tinted.
    Step,
    /// Thick strokes from `x` to `x_end`.
    Spans,
    /// Dots.
    Points,
}

/// The y axis a series belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The left one.
    Left,
    /// The right one.
    Right,
}

/// A named list of points.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub mark: Mark,
    /// Its y axis.
    pub side: Side,
    /// Its points, in order of x for lines and steps.
    pub points: Vec<Point>,
}

/// The position of a guide.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// A vertical line.
    X(f64),
    /// A horizontal line on the left axis.
    Y(f64),
    /// A shaded range of x, from and to. It does not extend the axis.
    XRange(f64, f64),
}

/// A labelled line or range across the frame.
#[derive(Debug, Clone)]
pub struct Guide {
    /// Its position.
    pub at: Place,
    /// Its text.
    pub label: String,
}

/// A plot; [`Plot::to_svg`] draws it.
#[derive(Debug, Clone)]
pub struct Plot {
    /// One sentence for readers who cannot see it.
    pub description: String,
    /// The x axis.
    pub x: Axis,
    /// The left y axis.
    pub left: Axis,
    /// The right y axis, if any series uses it.
    pub right: Option<Axis>,
    /// The series, first below; colours follow this order.
    pub series: Vec<Series>,
    /// Lines across the frame.
    pub guides: Vec<Guide>,
}

impl Plot {
    /// The plot as one `<svg>` element.
    pub fn to_svg(&self) -> String {
        let xs = self.series.iter().flat_map(|s| &s.points).flat_map(|p| [p.x, p.x_end]);
        let x = self.x.scale(xs.chain(self.guides.iter().filter_map(Guide::x)), LEFT, WIDTH - RIGHT);
        let y = |axis: &Axis, side| {
            let ys = self.series.iter().filter(|s| s.side == side).flat_map(|s| &s.points).map(|p| p.y);
            let guides = self.guides.iter().filter(|_| side == Side::Left).filter_map(Guide::y);
            axis.scale(ys.chain(guides), HEIGHT - BOTTOM, TOP)
        };
        let left = y(&self.left, Side::Left);
        let right = self.right.as_ref().map(|axis| y(axis, Side::Right));

        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escape(&self.description)
        );
        self.draw_frame(&mut svg, &x, &left, right.as_ref());
        for guide in &self.guides {
            draw_guide(&mut svg, guide, &x, &left);
        }
        // Tinted areas below, what has labels above; colours follow the order of the series all the same.
        let (areas, marks): (Vec<_>, Vec<_>) =
            self.series.iter().enumerate().partition(|(_, series)| series.mark == Mark::Step);
        for (index, series) in areas.into_iter().chain(marks) {
            let scale = match (series.side, &right) {
                (Side::Right, Some(right)) => right,
                (Side::Right, None) | (Side::Left, _) => &left,
            };
            draw_series(&mut svg, series, index, &x, scale);
        }
        self.draw_legend(&mut svg);
        svg.push_str("</svg>");
        svg
    }

    fn draw_frame(&self, svg: &mut String, x: &Scale, left: &Scale, right: Option<&Scale>) {
        let (bottom, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for tick in self.left.ticks(left) {
            let at = left.at(tick);
            put(
                svg,
                format_args!(
                    "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
                ),
            );
            text(svg, LEFT - 8.0, at + 4.0, "tick end", &number(tick));
        }
        for tick in self.x.ticks(x) {
            let at = x.at(tick);
            put(
                svg,
                format_args!(
                    "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{}\"/>",
                    bottom + 5.0
                ),
            );
            text(svg, at, bottom + 18.0, "tick mid", &number(tick));
        }
        if let (Some(axis), Some(scale)) = (&self.right, right) {
            for tick in axis.ticks(scale) {
                text(svg, end + 8.0, scale.at(tick) + 4.0, "tick", &number(tick));
            }
            vertical(svg, WIDTH - 14.0, &axis.label);
        }
        put(
            svg,
            format_args!("<line class=\"axis\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{bottom}\" y2=\"{bottom}\"/>"),
        );
        text(svg, (LEFT + end) / 2.0, HEIGHT - 8.0, "label mid", &self.x.label);
        vertical(svg, 13.0, &self.left.label);
    }

    fn draw_legend(&self, svg: &mut String) {
        /// Distance of two lines of the legend; two fit above the frame.
        const LINE: f64 = 16.0;
        let (mut at, mut top) = (LEFT, if self.legend_width() > WIDTH - LEFT { 4.0 } else { 12.0 });
        for (index, series) in self.series.iter().enumerate().filter(|(_, s)| !s.name.is_empty()) {
            if at > LEFT && at + legend_entry(series) > WIDTH {
                (at, top) = (LEFT, top + LINE);
            }
            put(
                svg,
                format_args!(
                    "<rect class=\"fill c{index}\" x=\"{at:.1}\" y=\"{top}\" width=\"12\" height=\"12\" rx=\"3\"/>"
                ),
            );
            text(svg, at + 18.0, top + 10.0, "label", &series.name);
            at += legend_entry(series);
        }
    }

    fn legend_width(&self) -> f64 {
        self.series.iter().filter(|s| !s.name.is_empty()).map(legend_entry).sum()
    }

    /// The plot as a file of its own.
    pub fn to_file(&self) -> String {
        file(&self.to_svg(), WIDTH, HEIGHT, "")
    }
}

/// Width of a legend's entry with the gap behind it.
fn legend_entry(series: &Series) -> f64 {
    40.0 + 6.7 * series.name.chars().count() as f64
}

fn draw_series(svg: &mut String, series: &Series, index: usize, x: &Scale, y: &Scale) {
    let at = |p: &Point| (x.at(p.x), y.at(p.y));
    match series.mark {
        Mark::Step => {
            let corners = step_corners(&series.points.iter().map(at).collect::<Vec<_>>());
            if let (Some(first), Some(last)) = (corners.first(), corners.last()) {
                let floor = HEIGHT - BOTTOM;
                let path = path_through(corners.iter().copied());
                put(
                    svg,
                    format_args!(
                        "<path class=\"tint c{index}\" d=\"{path}L{:.1} {floor}L{:.1} {floor}Z\"/>",
                        last.0, first.0
                    ),
                );
                put(svg, format_args!("<path class=\"stroke c{index}\" d=\"{path}\"/>"));
            }
        }
        Mark::Spans => {
            for p in &series.points {
                let ((from, height), to) = (at(p), x.at(p.x_end));
                // A span narrower than a pixel is still an event that happened.
                let width = (to - from).max(2.0);
                put(
                    svg,
                    format_args!(
                        "<rect class=\"fill c{index}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"8\" rx=\"2\"/>",
                        height - 4.0
                    ),
                );
                text(svg, from + width + 6.0, height + 4.0, "note", &p.label);
            }
        }
        Mark::Line => {
            // A value that is none interrupts the line; what stands alone between two gaps is a small dot.
            for run in series.points.split(|p| !p.y.is_finite()).filter(|run| !run.is_empty()) {
                if let [alone] = run {
                    let (px, py) = at(alone);
                    put(
                        svg,
                        format_args!(
                            "<circle class=\"fill c{index}\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"2\"/>"
                        ),
                    );
                } else {
                    let path = path_through(run.iter().map(at));
                    put(svg, format_args!("<path class=\"stroke c{index}\" d=\"{path}\"/>"));
                }
            }
        }
        Mark::Joined | Mark::Points => {
            if series.mark == Mark::Joined {
                let path = path_through(series.points.iter().map(at));
                put(svg, format_args!("<path class=\"stroke c{index}\" d=\"{path}\"/>"));
            }
            for p in &series.points {
                let (px, py) = at(p);
                put(
                    svg,
                    format_args!("<circle class=\"fill c{index}\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"5\"/>"),
                );
                let (side, class) = if px > WIDTH * 0.72 { (-9.0, "note end") } else { (9.0, "note") };
                text(svg, px + side, py - 7.0, class, &p.label);
            }
        }
    }
}

impl Guide {
    fn x(&self) -> Option<f64> {
        if let Place::X(x) = self.at { Some(x) } else { None }
    }

    fn y(&self) -> Option<f64> {
        if let Place::Y(y) = self.at { Some(y) } else { None }
    }
}

fn draw_guide(svg: &mut String, guide: &Guide, x: &Scale, y: &Scale) {
    let (end, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let (ends, note, class) = match guide.at {
        Place::XRange(from, to) => {
            let (from, to) = (x.at(from), x.at(to));
            put(
                svg,
                format_args!(
                    "<rect class=\"band\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{}\"/>",
                    (to - from).max(1.0),
                    bottom - TOP
                ),
            );
            text(svg, from + 6.0, TOP + 12.0, "note", &guide.label);
            return;
        }
        Place::X(value) => {
            let at = x.at(value);
            let (side, class) = if at > WIDTH * 0.72 { (-6.0, "note end") } else { (6.0, "note") };
            ((at, at, TOP - 4.0, bottom), (at + side, TOP + 6.0), class)
        }
        Place::Y(value) => {
            let at = y.at(value);
            // Beside the frame: within it the label would lie on points.
            ((LEFT, end, at, at), (end + 6.0, at + 4.0), "note")
        }
    };
    let (x1, x2, y1, y2) = ends;
    put(
        svg,
        format_args!("<line class=\"guide\" x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\"/>"),
    );
    text(svg, note.0, note.1, class, &guide.label);
}

fn step_corners(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::with_capacity(points.len() * 2);
    for &(x, y) in points {
        if let Some(&(_, before)) = corners.last() {
            corners.push((x, before));
        }
        corners.push((x, y));
    }
    corners
}

fn path_through(points: impl Iterator<Item = (f64, f64)>) -> String {
    points.enumerate().fold(String::new(), |path, (i, (x, y))| {
        path + &format!("{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' })
    })
}

fn vertical(svg: &mut String, x: f64, label: &str) {
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    let label = escape(label);
    put(
        svg,
        format_args!(
            "<text class=\"label mid\" transform=\"translate({x} {middle}) rotate(-90)\">{label}</text>"
        ),
    );
}

/// Text at a place; empty text draws nothing. `class` is from the page's style sheet.
pub(super) fn text(svg: &mut String, x: f64, y: f64, class: &str, content: &str) {
    if !content.is_empty() {
        put(
            svg,
            format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(content)),
        );
    }
}
