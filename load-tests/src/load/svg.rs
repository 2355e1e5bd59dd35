//! Plots as text: a pure function of numbers.

use std::fmt::Write as _;

/// A line of a plot.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) lines: Vec<Line>,
    /// From, to, and what was then.
    pub(crate) shaded: Vec<(f64, f64, String)>,
    /// Whether y is logarithmic.
    pub(crate) log: bool,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 36.0;
const TOP: f64 = 34.0;
const COLOURS: [&str; 6] = ["#1b6ca8", "#c8553d", "#2e8b57", "#8a4fa3", "#b8860b", "#555555"];

/// Text inside of markup.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number with as many digits as a reader wants.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.3e}", value),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.01 || v == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

impl Plot {
    fn extent(&self) -> (f64, f64, f64, f64) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let least = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::INFINITY, f64::min);
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::NEG_INFINITY, f64::max);
        let (x0, x1) = (least(|p| p.0), most(|p| p.0).max(least(|p| p.0) + 1e-9));
        let y0 = if self.log { least(|p| p.1.max(1e-3)).log10().floor() } else { 0.0 };
        let y1 = most(|p| p.1).max(1e-3);
        let y1 = if self.log { y1.log10().ceil().max(y0 + 1.0) } else { y1 * 1.08 };
        (x0, x1, y0, y1)
    }

    /// The plot as an `<svg>`; nothing where there is nothing to draw.
    pub(crate) fn svg(&self) -> String {
        if self.lines.iter().all(|line| line.points.is_empty()) {
            return String::new();
        }
        let (x0, x1, y0, y1) = self.extent();
        let px = |x: f64| LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - 16.0);
        let scaled = |y: f64| if self.log { y.max(1e-3).log10() } else { y };
        let py = |y: f64| HEIGHT - BOTTOM - (scaled(y) - y0) / (y1 - y0) * (HEIGHT - BOTTOM - TOP);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\"><text x=\"{LEFT}\" y=\"14\" class=\"t\">{0}</text>",
            escape(&self.title)
        );
        let mut add = |text: String| out.push_str(&text);
        for (from, to, what) in &self.shaded {
            let (from, to) = (px(from.clamp(x0, x1)), px(to.clamp(x0, x1)));
            add(format!(
                "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" class=\"f\"><title>{}</title></rect>",
                (to - from).max(1.0),
                HEIGHT - BOTTOM - TOP,
                escape(what)
            ));
        }
        for step in 0..=4 {
            let y = y0 + (y1 - y0) * f64::from(step) / 4.0;
            let at = HEIGHT - BOTTOM - f64::from(step) / 4.0 * (HEIGHT - BOTTOM - TOP);
            let value = if self.log { 10f64.powf(y) } else { y };
            add(format!(
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" class=\"g\"/>",
                WIDTH - 16.0
            ));
            add(format!(
                "<text x=\"{}\" y=\"{:.1}\" class=\"l\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                short(value)
            ));
            let x = x0 + (x1 - x0) * f64::from(step) / 4.0;
            add(format!("<text x=\"{:.1}\" y=\"{}\" class=\"m\">{}</text>", px(x), HEIGHT - 20.0, short(x)));
        }
        let middle = (WIDTH + LEFT) / 2.0;
        add(format!("<text x=\"{middle}\" y=\"{}\" class=\"m\">{}</text>", HEIGHT - 4.0, escape(&self.x)));
        add(format!("<text x=\"4\" y=\"{}\" class=\"u\">{}</text>", TOP - 6.0, escape(&self.y)));
        for (nth, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[nth % COLOURS.len()];
            let mut path = String::new();
            for (i, (x, y)) in line.points.iter().enumerate() {
                let letter = if i == 0 { 'M' } else { 'L' };
                // A string takes all that is written to it.
                let _ = write!(path, "{letter}{:.1} {:.1}", px(*x), py(*y));
            }
            add(format!("<path d=\"{path}\" stroke=\"{colour}\" class=\"p\"/>"));
            let x = WIDTH - 16.0 - 110.0 * (self.lines.len() - 1 - nth) as f64;
            add(format!(
                "<text x=\"{x}\" y=\"14\" fill=\"{colour}\" class=\"l\">{}</text>",
                escape(&line.name)
            ));
        }
        out + "</svg>"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_within_the_frame_and_text_is_escaped() {
        let points = vec![(0.0, 1.0), (5.0, 2_000.0), (9.0, 0.0)];
        for log in [false, true] {
            let line = Line { name: "<a>".into(), points: points.clone() };
            let shaded = vec![(-3.0, 4.0, "x&y".into())];
            let svg = Plot { lines: vec![line], log, shaded, ..Plot::default() }.svg();
            assert!(svg.contains("&lt;a&gt;") && svg.contains("x&amp;y") && !svg.contains("NaN"), "{svg}");
            let path = svg.split("d=\"M").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
            for point in path.split('L') {
                let (x, y) = point.split_once(' ').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!(
                    (LEFT..=WIDTH).contains(&x) && (TOP - 0.1..=HEIGHT - BOTTOM + 0.1).contains(&y),
                    "{point}"
                );
            }
        }
        assert_eq!(Plot::default().svg(), "");
    }
}
