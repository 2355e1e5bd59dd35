//! Horizontal bars with their values written out.

use super::{
    markup::{escape, file, put},
    plot::text,
    scale::Scale,
};

const ROW: f64 = 34.0;
/// Least width for labels and for values; longer ones take more.
const LABEL: f64 = 110.0;
const VALUE: f64 = 130.0;

/// The width of a drawing and of its letters.
struct Format {
    width: f64,
    /// Approximate width of a character.
    character: f64,
}

/// In a page.
const PAGE: Format = Format { width: 720.0, character: 6.7 };
/// In a file of its own, which a phone shows 330 pixels wide: fewer and larger letters.
const FILE: Format = Format { width: 520.0, character: 9.0 };
const FILE_RULES: &str = "svg text { font-size: 15px; }";

impl Format {
    /// Width for the longest of some texts: at least `least`, at most a third of a page's width.
    fn room<'a>(&self, texts: impl Iterator<Item = &'a String>, least: f64) -> f64 {
        let longest = texts.map(|text| text.chars().count()).max().unwrap_or(0);
        (18.0 + self.character * longest as f64).clamp(least, (PAGE.width / 3.0).max(least))
    }
}

/// One bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Its label.
    pub label: String,
    /// Its length.
    pub value: f64,
    /// The value as text, with its unit.
    pub text: String,
    /// Drawn in the first colour; the others are muted.
    pub ours: bool,
}

/// Bars over one linear axis from zero, with an optional labelled limit.
#[derive(Debug, Clone)]
pub struct Bars {
    /// One sentence for readers who cannot see it.
    pub description: String,
    /// The bars, from the top.
    pub bars: Vec<Bar>,
    /// A limit all bars are compared with.
    pub limit: Option<(f64, String)>,
}

impl Bars {
    /// The bars as one `<svg>` element.
    pub fn to_svg(&self) -> String {
        self.draw(&PAGE)
    }

    /// The bars as a file of its own.
    pub fn to_file(&self) -> String {
        file(&self.draw(&FILE), FILE.width, self.height(), FILE_RULES)
    }

    fn top(&self) -> f64 {
        if self.limit.is_some() { 26.0 } else { 8.0 }
    }

    fn height(&self) -> f64 {
        self.top() + ROW * self.bars.len() as f64 + 6.0
    }

    fn draw(&self, format: &Format) -> String {
        let (width, top, height) = (format.width, self.top(), self.height());
        let values = self.bars.iter().map(|b| b.value).chain(self.limit.iter().map(|l| l.0));
        let longest = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
        let left = format.room(self.bars.iter().map(|b| &b.label), LABEL);
        let values = format.room(self.bars.iter().map(|b| &b.text), VALUE);
        let scale = Scale::exact(0.0, longest, left, width - values);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n",
            escape(&self.description)
        );
        if let Some((value, label)) = &self.limit {
            let at = scale.at(*value);
            put(
                &mut svg,
                format_args!(
                    "<line class=\"guide\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"20\" y2=\"{height}\"/>"
                ),
            );
            let class = if at > width * 0.72 { "note end" } else { "note mid" };
            text(&mut svg, at, 14.0, class, label);
        }
        for (index, bar) in self.bars.iter().enumerate() {
            let y = top + ROW * index as f64;
            let end = scale.at(bar.value);
            let class = if bar.ours { "fill c0" } else { "fill muted" };
            let long = (end - left).max(1.0);
            text(&mut svg, left - 10.0, y + 20.0, "label end", &bar.label);
            put(
                &mut svg,
                format_args!(
                    "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{}\" width=\"{long:.1}\" height=\"20\" rx=\"3\"/>",
                    y + 5.0
                ),
            );
            text(&mut svg, end + 8.0, y + 20.0, "label", &bar.text);
        }
        svg.push_str("</svg>");
        svg
    }
}
