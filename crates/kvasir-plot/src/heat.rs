//! Heat maps: a grid of shaded cells with their values as text.

use super::{
    markup::{escape, put},
    plot::text,
};

const WIDTH: f64 = 720.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 8.0;
const ROW: f64 = 34.0;
const BOTTOM: f64 = 48.0;

/// One cell.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The value for its shade, on a logarithmic scale between the map's extremes.
    pub value: f64,
    /// Its text.
    pub text: String,
}

/// A grid of cells.
#[derive(Debug, Clone)]
pub struct HeatMap {
    /// One sentence for readers who cannot see it.
    pub description: String,
    /// Label of the x axis.
    pub x: String,
    /// Label of the y axis.
    pub y: String,
    /// Labels of the columns.
    pub columns: Vec<String>,
    /// Labels of the rows, from the top.
    pub row_labels: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<Cell>>,
}

impl HeatMap {
    /// The map as one `<svg>` element.
    pub fn to_svg(&self) -> String {
        let height = TOP + ROW * self.rows.len() as f64 + BOTTOM;
        let width = (WIDTH - LEFT - 8.0) / self.columns.len().max(1) as f64;
        let values = || self.rows.iter().flatten().map(|c| c.value).filter(|v| v.is_finite() && *v > 0.0);
        let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN_POSITIVE, f64::max));
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
            escape(&self.description)
        );
        for (i, (label, cells)) in self.row_labels.iter().zip(&self.rows).enumerate() {
            let y = TOP + ROW * i as f64;
            text(&mut svg, LEFT - 10.0, y + 22.0, "tick end", label);
            for (j, cell) in cells.iter().enumerate() {
                let x = LEFT + width * j as f64;
                let share = (cell.value / low).ln() / (high / low).ln();
                let shade = if share.is_finite() { 0.08 + 0.62 * share.clamp(0.0, 1.0) } else { 0.08 };
                put(
                    &mut svg,
                    format_args!(
                        "<rect class=\"fill c0\" opacity=\"{shade:.2}\" x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\" rx=\"3\"/>",
                        width - 3.0,
                        ROW - 3.0
                    ),
                );
                text(&mut svg, x + width / 2.0, y + 21.0, "label mid", &cell.text);
            }
        }
        let bottom = TOP + ROW * self.rows.len() as f64;
        for (j, column) in self.columns.iter().enumerate() {
            text(&mut svg, LEFT + width * (j as f64 + 0.5), bottom + 16.0, "tick mid", column);
        }
        text(&mut svg, f64::midpoint(LEFT, WIDTH), height - 8.0, "label mid", &self.x);
        text(&mut svg, 4.0, height - 8.0, "label", &self.y);
        svg.push_str("</svg>");
        svg
    }
}
