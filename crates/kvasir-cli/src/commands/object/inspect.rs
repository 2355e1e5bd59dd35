//! `kvasir object inspect`: the contents of a chunk object.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
use kvasir_container::{ContainerError, Head, MAGIC, ObjectVerifier};
use kvasir_types::{Level, LevelError, Quality};
use serde::Serialize;

use crate::{
    error::{CliError, CliResult, Exit, read_file},
    inputs,
    output::{bytes, print, print_json},
};

/// Arguments of `kvasir object inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// The chunk object.
    file: PathBuf,
    /// Model spec, as JSON or as any KV dump of the model. Not needed for the shipped model.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &InspectArguments) -> CliResult {
    let file = read_file(&arguments.file)?;
    if !file.starts_with(&MAGIC) {
        let message = format!("{} is not a chunk object", arguments.file.display());
        return Err(CliError::new(Exit::Data, message, "If it is a profile, use `kvasir profile inspect`."));
    }
    let head = verify(&file).map_err(|e| CliError::data(&arguments.file, e))?;
    let elements = inputs::spec_of(head.header.model_id, arguments.spec.as_deref())?
        .map(|spec| spec.elements_per_token() as u64);
    let view = ChunkView::of(&head, elements);
    if arguments.json { print_json(&view) } else { print(&view.text()) }
}

/// Checks every byte of an object, as the service does on upload.
fn verify(object: &[u8]) -> Result<Head, ContainerError> {
    let mut verifier = ObjectVerifier::new();
    verifier.push(object)?;
    verifier.finish()
}

/// A chunk object in numbers.
#[derive(Debug, Serialize)]
struct ChunkView {
    model_id: String,
    profile_hash: String,
    seq_hash: String,
    first_position: u64,
    tokens: u32,
    spans: u16,
    exact_tokens: u8,
    kl_beneath: f32,
    /// The error of the KV that the chunk was computed over, if its encoder measured it.
    beneath: Option<BeneathView>,
    head_bytes: u64,
    object_bytes: u64,
    levels: Vec<LevelView>,
}

/// The KV that the chunk was computed over.
#[derive(Debug, Serialize)]
struct BeneathView {
    error: LevelError,
    hops: u8,
}

impl BeneathView {
    fn text(&self) -> String {
        match self {
            Self { error: LevelError::NONE, hops: 0 } => "exact".to_owned(),
            Self { error: LevelError::UNKNOWN, hops: 0 } => "unknown: loads were not measured".to_owned(),
            Self { error, hops } => {
                format!("error {error} of what transparent allows, after {hops} lossy loads")
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct LevelView {
    level: Level,
    /// The best quality that its error allows; absent if it was not measured or exceeds all bounds.
    quality: Option<Quality>,
    /// The worst plane's error, relative to the bound of `transparent`.
    error: LevelError,
    /// The same for each layer's keys and values.
    errors: Vec<[LevelError; 2]>,
    /// Length of the object's prefix that decodes to this level.
    prefix_bytes: u64,
    /// Bits per element of the prefix; absent if the model's spec is not known.
    bits_per_element: Option<f64>,
    sections: Vec<SectionView>,
}

#[derive(Debug, Serialize)]
struct SectionView {
    scope: u16,
    band: u8,
    bytes: u64,
    pieces: usize,
    absent_pieces: usize,
}

impl ChunkView {
    fn of(head: &Head, elements_per_token: Option<u64>) -> Self {
        let header = &head.header;
        let elements = elements_per_token.map(|e| e as f64 * f64::from(header.token_count));
        let mut by_level: BTreeMap<Level, Vec<SectionView>> = BTreeMap::new();
        for (index, id) in head.sections().iter().enumerate() {
            let pieces = (0..head.span_count()).filter(|span| head.piece(index, *span).is_some()).count();
            by_level.entry(id.level).or_default().push(SectionView {
                scope: id.scope,
                band: id.band,
                bytes: head.section_range(index).map_or(0, |r| r.end - r.start),
                pieces,
                absent_pieces: head.span_count() - pieces,
            });
        }
        let level = |level: Level| {
            let prefix_bytes = head.level_bytes(level).unwrap_or(0);
            let measured = head.measured();
            let error = measured.map_or(LevelError::UNKNOWN, |measured| measured.error(level));
            let planes = measured.and_then(|measured| measured.levels.get(level.index()));
            let errors = planes.map(|planes| planes.as_chunks().0.to_vec()).unwrap_or_default();
            LevelView {
                level,
                quality: Quality::of(error),
                error,
                errors,
                prefix_bytes,
                bits_per_element: elements.map(|e| prefix_bytes as f64 * 8.0 / e),
                sections: by_level.remove(&level).unwrap_or_default(),
            }
        };
        Self {
            model_id: header.model_id.to_string(),
            profile_hash: header.profile_hash.to_string(),
            seq_hash: header.seq_hash.to_string(),
            first_position: header.first_position,
            tokens: header.token_count,
            spans: header.span_count,
            exact_tokens: header.exact_tokens,
            kl_beneath: header.kl_beneath,
            beneath: head.measured().map(|m| BeneathView { error: m.beneath, hops: m.hops }),
            head_bytes: header.head_bytes(),
            object_bytes: header.object_bytes,
            levels: (0..header.level_count).map(Level).map(level).collect(),
        }
    }

    /// Renders the tree of sections.
    fn text(&self) -> String {
        let mut lines = vec![
            format!("chunk      {}", self.seq_hash),
            format!("model      {}", self.model_id),
            format!("profile    {}", self.profile_hash),
            format!(
                "tokens     {} from position {}, {} spans, first {} exact, kl_beneath {}",
                self.tokens, self.first_position, self.spans, self.exact_tokens, self.kl_beneath
            ),
            format!(
                "object     {} ({} of them head: header, block hashes, directory, tokens)",
                bytes(self.object_bytes),
                bytes(self.head_bytes)
            ),
            "checksums  all verified".to_owned(),
        ];
        let beneath = self.beneath.as_ref().map_or_else(|| "not measured".to_owned(), BeneathView::text);
        lines.push(format!("beneath    {beneath}"));
        for level in &self.levels {
            let rate = level.bits_per_element.map_or_else(
                || {
                    format!(
                        "{:.0} bits per token (give --spec for bits per element)",
                        level.prefix_bytes as f64 * 8.0 / f64::from(self.tokens)
                    )
                },
                |bits| format!("{bits:.4} bits per element"),
            );
            let quality = match level.quality {
                Some(quality) => format!("{quality}, error {}", level.error),
                None => format!("no named quality, error {}", level.error),
            };
            lines.push(format!(
                "level {}    first {}, {rate}; {quality}",
                level.level,
                bytes(level.prefix_bytes)
            ));
            if !level.errors.is_empty() {
                let list = |plane: usize| {
                    level.errors.iter().map(|of| of[plane].to_string()).collect::<Vec<_>>().join(" ")
                };
                lines.push(format!("  ├─ errors by layer, keys: {}", list(0)));
                lines.push(format!("  ├─ errors by layer, values: {}", list(1)));
            }
            for (index, section) in level.sections.iter().enumerate() {
                let branch = if index + 1 == level.sections.len() { "└─" } else { "├─" };
                let absent = if section.absent_pieces > 0 {
                    format!(", {} absent", section.absent_pieces)
                } else {
                    String::new()
                };
                lines.push(format!(
                    "  {branch} scope {} band {}: {} in {} pieces{absent}",
                    section.scope,
                    section.band,
                    bytes(section.bytes),
                    section.pieces
                ));
            }
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_beneath_is_exact_only_if_its_error_is_known_to_be_none() {
        let text = |error, hops| BeneathView { error, hops }.text();
        assert_eq!(text(LevelError::NONE, 0), "exact");
        assert_eq!(text(LevelError::UNKNOWN, 0), "unknown: loads were not measured");
        let error = text(LevelError::at_least(0.5), 1);
        assert_eq!(error, "error 0.50 of what transparent allows, after 1 lossy loads");
    }
}
