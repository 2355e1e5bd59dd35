//! Errors of TOML files, without the text around them, which may contain a secret.

/// The line, the name of its setting, and what is wrong.
pub(crate) fn describe(text: &str, error: &toml::de::Error) -> String {
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return error.message().to_owned();
    };
    let (number, begin) = (before.matches('\n').count() + 1, before.rfind('\n').map_or(0, |at| at + 1));
    let name = text[begin..].split(['=', '\n']).next().unwrap_or_default().trim();
    let is_name = (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let name = if is_name { format!(", {name}") } else { String::new() };
    format!("line {number}{name}: {}", error.message())
}
