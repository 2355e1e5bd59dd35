//! The arithmetic coder of LMCache's CacheGen kernels: 32-bit interval, 16-bit probabilities, one bit at a
//! time with pending bits (Witten, Neal, Cleary 1987). Written from the description of its arithmetic, so
//! that the sizes are equal.

const HALF: u64 = 1 << 31;
const QUARTER: u64 = 1 << 30;
const TOP: u64 = u32::MAX as u64;

/// Upper ends of the symbols' intervals out of 2^16, with the 0 before the first; the last reads as 2^16.
pub(crate) type Cumulative<'a> = &'a [u16];

/// Interval of a symbol; the last one's end does not fit a `u16`.
fn interval(table: Cumulative<'_>, symbol: usize) -> (u64, u64) {
    let high = if symbol + 2 == table.len() { 1 << 16 } else { u64::from(table[symbol + 1]) };
    (u64::from(table[symbol]), high)
}

struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    held: u8,
    count: u32,
}

impl BitWriter<'_> {
    fn put(&mut self, bit: bool) {
        self.held = self.held << 1 | u8::from(bit);
        self.count += 1;
        if self.count == 8 {
            self.out.push(self.held);
            (self.held, self.count) = (0, 0);
        }
    }

    fn put_with_pending(&mut self, bit: bool, pending: &mut u32) {
        self.put(bit);
        for _ in 0..std::mem::take(pending) {
            self.put(!bit);
        }
    }

    fn flush(mut self) {
        while self.count > 0 {
            self.put(false);
        }
    }
}

/// Appends one byte-aligned stream.
pub(crate) fn encode(table: Cumulative<'_>, symbols: impl Iterator<Item = usize>, out: &mut Vec<u8>) {
    let (mut low, mut high, mut pending) = (0u64, TOP, 0);
    let mut bits = BitWriter { out, held: 0, count: 0 };
    for symbol in symbols {
        let span = high - low + 1;
        let (start, end) = interval(table, symbol);
        high = low + ((span * end) >> 16) - 1;
        low += (span * start) >> 16;
        loop {
            if high < HALF {
                bits.put_with_pending(false, &mut pending);
            } else if low >= HALF {
                bits.put_with_pending(true, &mut pending);
                low -= HALF;
                high -= HALF;
            } else if low >= QUARTER && high < 3 * QUARTER {
                pending += 1;
                low -= QUARTER;
                high -= QUARTER;
            } else {
                break;
            }
            low <<= 1;
            high = high << 1 | 1;
        }
    }
    pending += 1;
    bits.put_with_pending(low >= QUARTER, &mut pending);
    bits.flush();
}

/// Decodes `count` symbols of one stream; missing bytes read as zeros.
pub(crate) fn decode(table: Cumulative<'_>, bytes: &[u8], count: usize, mut each: impl FnMut(usize)) {
    let mut at = 0usize;
    let mut bit = || {
        let byte = bytes.get(at / 8).copied().unwrap_or(0);
        let bit = byte >> (7 - at % 8) & 1;
        at += 1;
        u64::from(bit)
    };
    let mut value = (0..32).fold(0, |value, _| value << 1 | bit());
    let (mut low, mut high) = (0u64, TOP);
    for _ in 0..count {
        let span = high - low + 1;
        let target = ((value - low + 1) << 16).wrapping_sub(1) / span;
        let inner = &table[1..table.len() - 1];
        let symbol = inner.partition_point(|end| u64::from(*end) <= target);
        each(symbol);
        let (start, end) = interval(table, symbol);
        high = low + ((span * end) >> 16) - 1;
        low += (span * start) >> 16;
        loop {
            let offset = if high < HALF {
                0
            } else if low >= HALF {
                HALF
            } else if low >= QUARTER && high < 3 * QUARTER {
                QUARTER
            } else {
                break;
            };
            low = (low - offset) << 1;
            high = (high - offset) << 1 | 1;
            value = (value - offset) << 1 | bit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_come_back_at_about_their_entropy() {
        let counts = [1u32, 3, 900, 60, 36];
        let mut table = vec![0u16];
        let mut sum = 0;
        for count in counts {
            sum += count;
            table.push(((sum * 65_530 / 1000) as usize + table.len()) as u16);
        }
        let mut state = 7u32;
        let symbols: Vec<usize> = (0..5000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let draw = (state >> 8) % 1000;
                counts
                    .iter()
                    .scan(0, |sum, c| {
                        *sum += c;
                        Some(*sum)
                    })
                    .position(|end| draw < end)
                    .unwrap()
            })
            .collect();
        let mut bytes = Vec::new();
        encode(&table, symbols.iter().copied(), &mut bytes);
        let mut back = Vec::new();
        decode(&table, &bytes, symbols.len(), |symbol| back.push(symbol));
        assert_eq!(back, symbols);
        let entropy: f64 = counts.iter().map(|&c| f64::from(c) / 1000.0).map(|p| -p * p.log2()).sum();
        let spent = bytes.len() as f64 * 8.0 / symbols.len() as f64;
        assert!((spent - entropy).abs() < 0.05, "{spent} bits for {entropy}");
    }
}
