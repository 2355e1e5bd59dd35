//! Self-contained HTML reports: one file, inline SVG, no script, no external resource.
//!
//! Everything here is a pure function of the data it is given, so a report can be made again from the JSON
//! of a run and tests can compare text. Colours are CSS variables; the page follows the reader's light or
//! dark setting.

mod bars;
mod heat;
mod page;
mod plot;
mod scale;

pub(crate) use bars::{Bar, Bars};
pub(crate) use heat::{Cell, HeatMap};
pub(crate) use page::{Figure, Page, Table};
pub(crate) use plot::{Axis, Guide, Mark, Place, Plot, Point, Series, Side};

/// Escapes text for an XML or HTML text node or quoted attribute.
///
/// Control characters that no XML document may hold become U+FFFD, so that hostile names (a file, a model)
/// cannot break the page.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
pub(crate) mod tests;
