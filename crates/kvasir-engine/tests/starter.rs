//! A model's first profile on text that is hard for it.

use std::sync::Arc;

use kvasir_codec::{ChunkEncoder, ChunkInput, CpuEncoder, Tokens, container::Head, starter};
use kvasir_engine::Model;
use kvasir_types::{ChainLink, Level, Loss, Quality};

/// The first layer's cache depends on the token alone, so that of a ruler is one row again and again.
#[test]
fn rulers_of_tables_are_transparent() {
    const CHUNK: usize = 256;
    let model = Model::kvasir_tiny().expect("embedded model");
    let encode = |text: &str| model.tokenizer().encode(text).expect("plain text");
    let mut tokens = encode(include_str!("data/harbour.txt"));
    tokens.truncate(CHUNK);
    tokens.extend(encode("| port | ships |\n"));
    tokens.extend(encode(&"-".repeat(2_000)));
    tokens.truncate(2 * CHUNK);
    let kv = model.calculate_kv(&tokens).expect("fits the context");
    let profile = starter(model.spec(), &tokens[..CHUNK], 0, &kv).expect("a sample");
    let encoder = CpuEncoder::new(Arc::clone(model.spec()), Arc::new(profile)).expect("of the model");
    let (mut bytes, mut errors) = (Vec::new(), Vec::new());
    for start in [0, CHUNK] {
        let input = ChunkInput {
            tokens: &tokens[start..start + CHUNK],
            preceding_token: start.checked_sub(1).map(|before| tokens[before]),
            first_position: start as u64,
            link: ChainLink::first([0; 32].into()),
            beneath: Loss::NONE,
            kv: &Tokens::from(&kv, start),
        };
        let object = encoder.encode(&input).expect("encodes");
        let head = Head::parse(&object).expect("an object");
        bytes.push(object.len());
        errors.push(head.measured().expect("measured").error(Level(2)));
    }
    assert!(
        errors.iter().all(|error| *error <= Quality::Transparent.error_max()),
        "{errors:?}, {bytes:?} bytes"
    );
}
