//! How well the first profile of a model keeps documents `transparent`: errors as the encoder measures them,
//! bytes and time.
//!
//! ```text
//! cargo run --release -p kvasir-engine --example documents -- ARCHITECTURE.md DECISIONS.md CHANGELOG.md
//! ```
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a command line tool that measures")]

use std::{sync::Arc, time::Instant};

use kvasir_codec::{ChunkInput, CpuEncoder, KvBuffer, container::Head, starter};
use kvasir_engine::Model;
use kvasir_types::{ChainLink, Level, Loss, Quality};

/// Tokens of a prompt: as many as fit the small model's context.
const PROMPT: usize = 960;
const CHUNK: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::kvasir_tiny()?;
    let mut text = String::new();
    for path in std::env::args().skip(1) {
        text += &std::fs::read_to_string(path)?;
    }
    let text = model.tokenizer().encode(&text)?;
    let mut encoder = None;
    let (mut chunks, mut out, mut bytes, mut tokens, mut seconds) = (0, 0, 0, 0, 0.0);
    for (window, prompt) in text.chunks_exact(PROMPT).enumerate() {
        let kv = model.calculate_kv(prompt)?;
        for start in (0..PROMPT).step_by(CHUNK) {
            let range = start..(start + CHUNK).min(PROMPT);
            let kv =
                KvBuffer::from_source(model.spec(), range.len(), &kvasir_codec::Tokens::from(&kv, start));
            let encoder = match &encoder {
                Some(encoder) => encoder,
                None => {
                    let profile = starter(model.spec(), &prompt[range.clone()], start as u64, &kv)?;
                    encoder.insert(CpuEncoder::new(Arc::clone(model.spec()), Arc::new(profile))?)
                }
            };
            let input = ChunkInput {
                tokens: &prompt[range.clone()],
                preceding_token: start.checked_sub(1).map(|before| prompt[before]),
                first_position: start as u64,
                link: ChainLink::first([0; 32].into()),
                beneath: Loss::NONE,
                kv: &kv,
            };
            let begun = Instant::now();
            let (object, _) = encoder.encode_with_report(&input)?;
            seconds += begun.elapsed().as_secs_f64();
            let head = Head::parse(&object)?;
            let measured = head.measured().ok_or("not measured")?;
            let error = measured.error(Level(head.header.level_count - 1));
            chunks += 1;
            bytes += object.len();
            tokens += range.len();
            if error > Quality::Transparent.error_max() {
                out += 1;
                println!(
                    "window {window}, tokens {range:?}: {error} times the bound, {} bytes",
                    object.len()
                );
                let finest = measured.levels.last().ok_or("no level")?;
                println!("  {}", finest.iter().map(|e| format!("{e:.4}")).collect::<Vec<_>>().join(" "));
                println!("  {:?}", model.tokenizer().decode(&prompt[range])?);
            }
        }
    }
    let elements = (tokens * model.spec().elements_per_token()) as f64;
    println!(
        "{out} of {chunks} chunks out of bound, {:.3} bits per element, {:.2} ms a chunk",
        8.0 * bytes as f64 / elements,
        1e3 * seconds / chunks as f64
    );
    Ok(())
}
