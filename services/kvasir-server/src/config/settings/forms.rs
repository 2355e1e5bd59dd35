//! Parsing and printing of values.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use kvasir_store::Secret;
use tokio::sync::Semaphore;

use crate::config::{Config, JwtConfig};

pub(super) fn parsed<T: FromStr>(slot: &mut T, text: &str, form: &str) -> Result<(), String> {
    *slot = text.parse().map_err(|_| format!("{text:?} is not {form}"))?;
    Ok(())
}

pub(super) fn positive(slot: &mut usize, text: &str) -> Result<(), String> {
    parsed(slot, text, "a whole number")?;
    // Some of them are permits of a semaphore, which panics beyond that.
    let sound = (1..=Semaphore::MAX_PERMITS).contains(&*slot);
    if sound { Ok(()) } else { Err(format!("must be at least 1 and at most {}", Semaphore::MAX_PERMITS)) }
}

/// Durations such as `250ms`, `1s`, `2m`, `1h`; `0s` is allowed.
pub(super) fn duration(slot: &mut Duration, text: &str) -> Result<(), String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("{text:?} is not a duration such as 250ms, 1s, 2m or 1h")),
    };
    let count: Option<u64> = digits.parse().ok();
    let millis = count.and_then(|count| count.checked_mul(scale));
    *slot = Duration::from_millis(millis.ok_or_else(|| format!("{text:?} is not a duration"))?);
    Ok(())
}

pub(super) fn duration_text(value: Duration) -> Option<String> {
    let millis = value.as_millis();
    let text =
        if millis.is_multiple_of(1_000) { format!("{}s", millis / 1_000) } else { format!("{millis}ms") };
    quoted(text)
}

/// As [`bytes()`], or 0.
pub(super) fn bytes_or_none(slot: &mut u64, text: &str) -> Result<(), String> {
    if text == "0" || text == "0B" {
        *slot = 0;
        return Ok(());
    }
    bytes(slot, text)
}

/// Sizes such as `64KiB`, `16MiB`, `1GiB`, or plain bytes.
pub(super) fn bytes(slot: &mut u64, text: &str) -> Result<(), String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit.trim_start() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(format!("{text:?} is not a size such as 64KiB, 16MiB or 1GiB")),
    };
    let count: Option<u64> = digits.parse().ok();
    let size = count.and_then(|count| count.checked_mul(1 << shift)).filter(|&size| size > 0);
    *slot = size.ok_or_else(|| format!("{text:?} is not a size above 0"))?;
    Ok(())
}

pub(super) fn bytes_text(value: u64) -> Option<String> {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| value > 0 && value.is_multiple_of(1 << shift));
    quoted(unit.map_or_else(|| format!("{value}B"), |(shift, name)| format!("{}{name}", value >> shift)))
}

pub(super) fn quoted(text: impl AsRef<str>) -> Option<String> {
    Some(toml::Value::String(text.as_ref().to_owned()).to_string())
}

pub(super) fn secret_text(value: &Option<Secret>) -> Option<String> {
    value.as_ref().and_then(|_| quoted("***"))
}

pub(super) fn text(slot: &mut String, text: &str) -> Result<(), String> {
    text.clone_into(slot);
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(()) }
}

pub(super) fn path(slot: &mut PathBuf, text: &str) -> Result<(), String> {
    *slot = PathBuf::from(text);
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(()) }
}

pub(super) fn path_text(path: &Path) -> Option<String> {
    quoted(path.to_string_lossy())
}

/// The JWT settings, created when the first of them is set.
pub(super) fn jwt(config: &mut Config) -> &mut JwtConfig {
    config.auth.jwt.get_or_insert_with(|| JwtConfig {
        jwks_file: PathBuf::new(),
        issuer: String::new(),
        audience: String::new(),
        tenant_claim: "tenant".to_owned(),
        role_claim: "role".to_owned(),
    })
}
