//! Text as markup: escaping, the style sheet, and a check that a document is well formed.

use std::fmt::Write as _;

/// The style sheet of pages and of standalone plots.
pub(crate) const STYLE: &str = include_str!("style.css");

/// An `<svg>` element as a file of its own with the style of drawings inside.
///
/// Colours are literal, because not every viewer knows variables: the light ones, and dark ones where the reader's setting
/// asks for them.
pub(crate) fn file(svg: &str, width: f64, height: f64, own_rules: &str) -> String {
    let Some((attributes, body)) = svg.strip_prefix("<svg ").and_then(|rest| rest.split_once('>')) else {
        return svg.to_owned();
    };
    let palettes: Vec<&str> =
        STYLE.split(":root {").skip(1).filter_map(|rest| rest.split('}').next()).collect();
    let rules = STYLE.find("\nsvg {").and_then(|from| STYLE.get(from..)).unwrap_or_default();
    let rules = rules.split("\n.scroll").next().unwrap_or_default();
    let rules = format!(
        "{rules}\nsvg {{ background: var(--paper); font-family: system-ui, sans-serif; }}\n{own_rules}"
    );
    let coloured = |palette: &str| {
        let colours = palette.split(';').filter_map(|line| line.trim().split_once(": "));
        colours.fold(rules.clone(), |rules, (name, value)| rules.replace(&format!("var({name})"), value))
    };
    let style: String = match palettes[..] {
        [light, dark, ..] => {
            format!("{}\n@media (prefers-color-scheme: dark) {{{}\n}}\n", coloured(light), coloured(dark))
        }
        _ => rules,
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" {attributes}><style>{style}</style>{body}\n"
    )
}

/// Escapes text for an XML or HTML text node or quoted attribute.
///
/// Control characters that no XML document may hold become U+FFFD, so that hostile names (a file, a model)
/// cannot break the page.
pub fn escape(text: &str) -> String {
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

/// One line of markup. Writing into a `String` cannot fail.
pub(crate) fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(line);
    out.push('\n');
}

/// Checks that `document` is well-formed markup: tags nest, attributes are quoted, no raw `<` or `&` in
/// text. Returns the names of the elements in order.
pub fn check_markup(document: &str) -> Result<Vec<String>, String> {
    let mut rest = document.strip_prefix("<!DOCTYPE html>").unwrap_or(document);
    let (mut open, mut names) = (Vec::new(), Vec::new());
    while let Some(start) = rest.find('<') {
        check_text(&rest[..start])?;
        let end = rest[start..].find('>').ok_or("a tag without end")? + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let expected = open.pop().ok_or_else(|| format!("</{name}> closes nothing"))?;
            if expected != name {
                return Err(format!("</{name}> closes <{expected}>"));
            }
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap_or_default().to_owned();
        check_attributes(tag)?;
        if name == "style" {
            rest = &rest[rest.find("</style>").ok_or("<style> without end")?..];
        }
        names.push(name.clone());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    check_text(rest)?;
    if open.is_empty() { Ok(names) } else { Err(format!("not closed: {open:?}")) }
}

fn check_text(text: &str) -> Result<(), String> {
    let entities = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
    let bad_entity = text.match_indices('&').any(|(i, _)| !entities.iter().any(|e| text[i..].starts_with(e)));
    let bad_control = text.chars().any(|c| c.is_control() && !"\t\n\r".contains(c));
    if bad_entity || bad_control || text.contains('>') { Err(format!("raw text: {text:?}")) } else { Ok(()) }
}

fn check_attributes(tag: &str) -> Result<(), String> {
    let quotes = tag.matches('"').count();
    let unquoted = tag.match_indices('=').filter(|(i, _)| tag[..*i].matches('"').count().is_multiple_of(2));
    let all_quoted = unquoted.into_iter().all(|(i, _)| tag[i + 1..].starts_with('"'));
    if quotes.is_multiple_of(2) && all_quoted {
        check_text(&tag.replace('"', ""))
    } else {
        Err(format!("attributes of <{tag}>"))
    }
}
