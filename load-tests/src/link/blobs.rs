//! Encodings without a service: bytes behind a link, fetched in order, decoded while the next ones arrive.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::{Context as _, Result};
use kvasir_codec::KvSource as _;
use kvasir_replay::link::{LinkOptions, ShapedLink};
use kvasir_types::Plane;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::Instant,
};

use super::synthetic::{DIM, HEADS, SyntheticKv};

/// Tokens per blob, as per chunk.
const TOKENS: usize = 1536;
const WIDTH: usize = HEADS * DIM;

/// How a cache is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// bf16, as engines keep it.
    Raw,
    /// 8 bits per element and one scale per token, layer and plane.
    EightBit,
}

/// Rows of one layer and plane, `[token][channel]`.
pub(super) fn plane(layer: usize, which: Plane, first: usize, tokens: usize) -> Vec<f32> {
    let mut rows = vec![0.0; tokens * WIDTH];
    let mut head_rows = vec![0.0; tokens * DIM];
    for head in 0..HEADS {
        SyntheticKv.read(layer, which, head, first..first + tokens, &mut head_rows);
        for (token, row) in head_rows.chunks_exact(DIM).enumerate() {
            rows[token * WIDTH + head * DIM..][..DIM].copy_from_slice(row);
        }
    }
    rows
}

fn eight_bit(row: &[f32], out: &mut Vec<u8>) {
    let scale = row.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
    out.extend(scale.to_le_bytes());
    out.extend(row.iter().map(|x| (x / scale).round() as i8 as u8));
}

/// The whole cache, a blob for every 1,536 tokens.
pub(crate) fn encode(encoding: Encoding, layers: usize, tokens: usize) -> Vec<Vec<u8>> {
    let blob = |first: usize| {
        let count = TOKENS.min(tokens - first);
        let mut out = Vec::new();
        for layer in 0..layers {
            for which in Plane::ALL {
                let rows = plane(layer, which, first, count);
                match encoding {
                    Encoding::Raw => {
                        out.extend(rows.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()))
                    }
                    Encoding::EightBit => rows.chunks_exact(WIDTH).for_each(|row| eight_bit(row, &mut out)),
                }
            }
        }
        out
    };
    (0..tokens).step_by(TOKENS).map(blob).collect()
}

/// Back to bf16.
fn decode(encoding: Encoding, blob: &[u8], out: &mut Vec<u16>) {
    out.clear();
    match encoding {
        Encoding::Raw => out.extend(blob.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes))),
        Encoding::EightBit => {
            for row in blob.chunks_exact(4 + WIDTH) {
                let scale = row.first_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
                out.extend(row[4..].iter().map(|q| ((f32::from(*q as i8) * scale).to_bits() >> 16) as u16));
            }
        }
    }
    std::hint::black_box(&out);
}

/// Blobs behind a link: a client that connects and sends a byte gets all of them.
pub(super) struct BlobServer {
    pub(super) link: ShapedLink,
    serving: JoinHandle<std::io::Result<()>>,
}

impl BlobServer {
    /// For one reader.
    pub(super) async fn start(blobs: Arc<Vec<Vec<u8>>>, link: LinkOptions) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await?;
            stream.read_u8().await?;
            for blob in blobs.iter() {
                stream.write_all(blob).await?;
            }
            Ok(())
        });
        Ok(Self { link: ShapedLink::start(address, link).await?, serving })
    }

    /// Waits until all are sent.
    pub(super) async fn end(self) -> Result<()> {
        Ok(self.serving.await??)
    }
}

/// Fetches the blobs over the link and decodes each on a separate thread. Returns the time until all are
/// decoded.
pub(super) async fn load(
    blobs: &Arc<Vec<Vec<u8>>>,
    encoding: Encoding,
    link: LinkOptions,
) -> Result<Duration> {
    let sizes: Vec<usize> = blobs.iter().map(Vec::len).collect();
    let served = BlobServer::start(Arc::clone(blobs), link).await?;
    let (sender, receiver) = mpsc::channel::<Vec<u8>>();
    let decoding = tokio::task::spawn_blocking(move || {
        let mut out = Vec::new();
        receiver.iter().for_each(|blob| decode(encoding, &blob, &mut out));
    });
    let mut stream = TcpStream::connect(served.link.address()).await?;
    let begun = Instant::now();
    stream.write_u8(1).await?;
    for size in sizes {
        let mut blob = vec![0; size];
        stream.read_exact(&mut blob).await?;
        sender.send(blob).ok().context("the decoder ended")?;
    }
    drop(sender);
    decoding.await?;
    let took = begun.elapsed();
    served.end().await?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_come_back_within_half_a_step() {
        let (raw, eight) = (encode(Encoding::Raw, 1, 20), encode(Encoding::EightBit, 1, 20));
        assert_eq!((raw[0].len(), eight[0].len()), (20 * 2 * WIDTH * 2, 20 * 2 * (WIDTH + 4)));
        let (mut exact, mut lossy) = (Vec::new(), Vec::new());
        decode(Encoding::Raw, &raw[0], &mut exact);
        decode(Encoding::EightBit, &eight[0], &mut lossy);
        let float = |bits: &u16| f32::from_bits(u32::from(*bits) << 16);
        let most = exact.iter().map(|x| float(x).abs()).fold(0.0, f32::max);
        let error = exact.iter().zip(&lossy).map(|(a, b)| (float(a) - float(b)).abs()).fold(0.0, f32::max);
        // Half a step, and the rounding of bf16 on either side.
        assert!(error <= most / 127.0 * 0.5 + most / 64.0, "{error} of {most}");
        assert_ne!(exact, lossy);
    }
}
