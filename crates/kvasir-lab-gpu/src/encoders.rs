//! Encoders for the other systems' kernels, shared by their test and by `gpu_check`. Not part of the codec.

use crate::kernels::{PEER_BLOCK_SYMBOLS, PEER_SLOTS, PeerBlock};

/// Symbols as encoded by a slot-table coder.
#[derive(Debug)]
pub struct Slots {
    /// States and words of all blocks.
    pub bytes: Vec<u8>,
    /// The decoder's table, one entry per slot.
    pub table: Vec<u32>,
    /// Positions of the blocks in `bytes`.
    pub blocks: Vec<PeerBlock>,
}

/// Frequencies that sum to `one`, none of them 0.
fn frequencies(symbols: &[u8], one: u32) -> [u32; 16] {
    let mut counts = [1u64; 16];
    symbols.iter().for_each(|s| counts[usize::from(*s)] += 1);
    let total: u64 = counts.iter().sum();
    let mut out = counts.map(|c| (c * u64::from(one - 16) / total) as u32 + 1);
    let largest = (0..16).max_by_key(|s| out[*s]).unwrap_or(0);
    out[largest] += one - out.iter().sum::<u32>();
    out
}

/// DietGPU's shape: 32 lanes, 16-bit words, 11-bit probabilities, blocks of 4,096 symbols.
pub fn slots(symbols: &[u8]) -> Slots {
    let frequency = frequencies(symbols, PEER_SLOTS);
    let start = |symbol: usize| frequency[..symbol].iter().sum::<u32>();
    let table = (0..16usize).flat_map(|symbol| {
        (0..frequency[symbol]).map(move |offset| symbol as u32 | frequency[symbol] << 8 | offset << 20)
    });
    let mut out = Slots { bytes: Vec::new(), table: table.collect(), blocks: Vec::new() };
    for (index, block) in symbols.chunks_exact(PEER_BLOCK_SYMBOLS as usize).enumerate() {
        let (mut states, mut words) = ([1u32 << 15; 32], Vec::<u16>::new());
        for (i, symbol) in block.iter().enumerate().rev() {
            let (state, symbol) = (&mut states[i % 32], usize::from(*symbol));
            if *state >= frequency[symbol] << 20 {
                words.push(*state as u16);
                *state >>= 16;
            }
            *state = *state / frequency[symbol] * PEER_SLOTS + *state % frequency[symbol] + start(symbol);
        }
        words.reverse();
        let states_at = out.bytes.len() as u32;
        states.iter().for_each(|state| out.bytes.extend_from_slice(&state.to_le_bytes()));
        let record = PeerBlock {
            states: states_at,
            words: out.bytes.len() as u32,
            word_count: words.len() as u32,
            output: index as u32 * PEER_BLOCK_SYMBOLS,
        };
        words.iter().for_each(|word| out.bytes.extend_from_slice(&word.to_le_bytes()));
        out.bytes.resize(out.bytes.len().next_multiple_of(4), 0);
        out.blocks.push(record);
    }
    out
}

/// Symbols as encoded by one arithmetic coder per channel.
#[derive(Debug)]
pub struct Channels {
    /// Streams of all channels.
    pub bytes: Vec<u8>,
    /// First byte of every channel's stream, and the end.
    pub starts: Vec<u32>,
    /// `[channel][17]`, the last 0.
    pub distributions: Vec<u16>,
}

/// CacheGen's shape (torchac): `symbols[token][channel]`, one stream and one distribution per channel.
pub fn channels(symbols: &[u8], count: usize) -> Channels {
    let mut out = Channels { bytes: Vec::new(), starts: vec![0], distributions: Vec::new() };
    for channel in 0..count {
        let own: Vec<u8> = symbols.iter().skip(channel).step_by(count).copied().collect();
        let frequency = frequencies(&own, 1 << 16);
        let bounds: Vec<u64> = (0..=16).map(|s| frequency[..s].iter().map(|f| u64::from(*f)).sum()).collect();
        out.distributions.extend(bounds.iter().map(|bound| *bound as u16));
        encode_channel(&own, &bounds, &mut out.bytes);
        out.starts.push(out.bytes.len() as u32);
    }
    out
}

fn encode_channel(symbols: &[u8], bounds: &[u64], out: &mut Vec<u8>) {
    let (mut low, mut high, mut pending) = (0u32, u32::MAX, 0usize);
    let mut bits: Vec<bool> = Vec::new();
    let emit = |bit: bool, pending: &mut usize, bits: &mut Vec<bool>| {
        bits.push(bit);
        bits.extend(std::iter::repeat_n(!bit, std::mem::take(pending)));
    };
    for symbol in symbols {
        let span = u64::from(high) - u64::from(low) + 1;
        let index = usize::from(*symbol);
        high = (u64::from(low) + ((span * bounds[index + 1]) >> 16) - 1) as u32;
        low = (u64::from(low) + ((span * bounds[index]) >> 16)) as u32;
        loop {
            if high < 1 << 31 || low >= 1 << 31 {
                emit(low >= 1 << 31, &mut pending, &mut bits);
                low <<= 1;
                high = (high << 1) | 1;
            } else if low >= 1 << 30 && high < 3 << 30 {
                pending += 1;
                low = (low << 1) & 0x7fff_ffff;
                high = (high << 1) | 0x8000_0001;
            } else {
                break;
            }
        }
    }
    pending += 1;
    emit(low >= 1 << 30, &mut pending, &mut bits);
    out.extend(
        bits.chunks(8)
            .map(|byte| byte.iter().enumerate().fold(0, |b, (i, bit)| b | u8::from(*bit) << (7 - i))),
    );
}
