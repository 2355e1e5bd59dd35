//! The picture of the README: bits an element at one quality, from the rows of `kvasir-lab bench quality`.
//!
//! cargo run -p kvasir-plot --example size_at_quality -- crates/kvasir-lab/results/quality.csv > size.svg

use std::{env, error::Error, fs};

use kvasir_plot::{Bar, Bars};

/// The quality, in nats a token.
const KL: f64 = 0.003;
/// Tokens of a chunk.
const CHUNK_TOKENS: &str = "256";
/// Codec and variant of the rows, and what readers know them by.
const CODECS: [(&str, &str, &str); 6] = [
    ("uniform8", "", "8-bit integers"),
    ("lmcache", "", "CacheGen in LMCache"),
    ("cachegen_paper", "", "CacheGen, paper"),
    ("kvasir", "direct", "Kvasir, no basis"),
    ("kvtc_like", "budget", "like KVTC"),
    ("kvasir", "budget", "Kvasir, as shipped"),
];

#[allow(clippy::print_stdout, reason = "the picture is what it prints")]
fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).ok_or("which quality.csv?")?;
    let text = fs::read_to_string(path)?;
    let rows: Vec<Vec<&str>> =
        text.lines().map(|line| line.split(',').map(|cell| cell.trim_matches('"')).collect()).collect();
    let (head, rows) = rows.split_first().ok_or("no rows")?;
    let column = |name: &str| head.iter().position(|cell| *cell == name).ok_or(format!("no column {name}"));
    let (codec, variant, chunk) = (column("codec")?, column("variant")?, column("chunk_tokens")?);
    let (bits, kl, domain) = (column("bits_per_element")?, column("kl")?, column("domain")?);
    let first = rows.first().ok_or("no rows")?[domain];
    let mut bars = vec![bar("as cached", 16.0, "16", false)];
    for (name, of, label) in CODECS {
        let own = rows.iter().filter(|row| {
            (row[codec], row[variant], row[chunk], row[domain]) == (name, of, CHUNK_TOKENS, first)
        });
        let mut ladder = Vec::new();
        for row in own {
            ladder.push((row[bits].parse::<f64>()?, row[kl].parse::<f64>()?));
        }
        ladder.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = bits_at(&ladder).ok_or(format!("{name} never reaches {KL}"))?;
        let decimals = if at < 1.0 { 3 } else { 2 };
        bars.push(bar(label, at, &format!("{at:.decimals$}"), name == "kvasir"));
    }
    let description = format!("Bits an element of a KV cache at a KL of {KL} nats a token, by codec");
    print!("{}", Bars { description, bars, limit: None }.to_file());
    Ok(())
}

fn bar(label: &str, value: f64, text: &str, ours: bool) -> Bar {
    Bar { label: label.to_owned(), value, text: format!("{text} bits"), ours }
}

/// Bits where chunks are divided between two levels so that their mean KL is [`KL`]; a ladder that begins below it has its
/// first level's.
fn bits_at(ladder: &[(f64, f64)]) -> Option<f64> {
    let mixed = ladder.windows(2).find_map(|pair| {
        let ((coarse, most), (fine, least)) = (pair[0], pair[1]);
        (most > KL && least <= KL).then(|| coarse + (fine - coarse) * (most - KL) / (most - least))
    });
    mixed.or_else(|| ladder.first().filter(|(_, kl)| *kl <= KL).map(|(bits, _)| *bits))
}
