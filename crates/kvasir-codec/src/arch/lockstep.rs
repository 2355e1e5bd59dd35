//! The driver that decodes streams with a kernel.

use super::{
    kernel::{Kernel, KernelCell, REFILL_BYTES},
    steps::{Mix, Mixed, OfAny, OfEither, OfStages, OfTrits, Step},
    stream::Stream,
};
use crate::rans::{
    LANES,
    bank::TableBank,
    stream::{StreamFault, StreamJob, cell::Fit},
};

/// Coders and cursors of streams. A cursor past `word_bytes` means an underrun. It is detected at the end;
/// until then decoding continues with arbitrary bytes.
#[derive(Clone, Copy)]
struct Live<K: Kernel, const N: usize> {
    coders: [K::Coders; N],
    cursors: [usize; N],
}

/// Repeats a statement for every index below `N`, at most 4, unrolled: an indexed array would be kept in
/// memory. No closures: they would not be compiled for the kernel's features.
macro_rules! each {
    ($count:ident, |$i:ident| $body:expr) => {
        each!($count $i $body; 0 1 2 3)
    };
    ($count:ident $i:ident $body:expr; $($index:literal)+) => {
        {
            $(if $index < $count {
                let $i: usize = $index;
                $body
            })+
        }
    };
}

/// The next step of one stream, whatever it is.
///
/// # Safety
/// As [`Kernel`]; the step is the stream's `c`th, and the row is full.
#[inline(always)]
unsafe fn alone<K: Kernel, V: KernelCell>(
    stream: &mut Stream<'_, V>,
    step: &Step<'_>,
    (c, row): (usize, usize),
    (mut coders, mut cursor): (K::Coders, usize),
) -> (K::Coders, usize) {
    let at = step.at + row * LANES;
    if step.certain() {
        let mut lanes = [0; LANES];
        // SAFETY: the caller's promise, here and below.
        unsafe { K::store(coders, &mut lanes) };
        let cursor = stream.portable(&mut lanes, cursor, c, row);
        // SAFETY: as above.
        return (unsafe { K::load(&lanes) }, cursor);
    }
    if !step.table.is_stage() {
        // SAFETY: as above.
        return unsafe { stream.refine::<K>(step.table, at, (coders, cursor)) };
    }
    // SAFETY: as above.
    let ([next], [values], [escapes]) = unsafe { K::stages([step.table], [coders]) };
    // SAFETY: as above.
    let out = unsafe { stream.row_values(at) };
    // SAFETY: as above.
    unsafe { V::put::<K>(values, out) };
    // SAFETY: as above.
    let ([next], [taken]) = unsafe { K::refills([next], [stream.words(cursor)]) };
    (coders, cursor) = (next, cursor + taken);
    if escapes != 0 {
        // SAFETY: as above.
        (coders, cursor) = unsafe { stream.escapes::<K>(escapes, values, at, (coders, cursor)) };
    }
    for table in step.refinements() {
        // SAFETY: as above.
        (coders, cursor) = unsafe { stream.refine::<K>(table, at, (coders, cursor)) };
    }
    (coders, cursor)
}

/// The next step of each stream, knowing that all are `M`, which is not [`Mix::Any`].
///
/// # Safety
/// As [`Kernel`]; the steps are the streams' and the row is full.
#[inline(always)]
unsafe fn together<K: Kernel, V: KernelCell, M: Mixed, const N: usize>(
    streams: &mut [Stream<'_, V>; N],
    steps: [&Step<'_>; N],
    row: usize,
    mut live: Live<K, N>,
) -> Live<K, N> {
    // SAFETY: the caller's promise, here and below.
    let mut values = [unsafe { K::load_values(&[0; LANES]) }; N];
    let (mut ats, mut escapes) = ([0; N], [0; N]);
    each!(N, |i| ats[i] = steps[i].at + row * LANES);
    if M::MIX != Mix::Stages && V::NARROW {
        each!(N, |i| {
            // SAFETY: as above.
            let cells = unsafe { streams[i].row_values(ats[i]) };
            // SAFETY: as above.
            let Some(held) = (unsafe { V::values::<K>(cells) }) else { return live };
            values[i] = held;
        });
    }
    let mut tables = [steps[0].table; N];
    each!(N, |i| tables[i] = steps[i].table);
    match M::MIX {
        // SAFETY: as above.
        Mix::Stages => (live.coders, values, escapes) = unsafe { K::stages(tables, live.coders) },
        // SAFETY: as above.
        Mix::Either => (live.coders, values, escapes) = unsafe { K::eithers(tables, live.coders, values) },
        Mix::Trits | Mix::Any if V::NARROW => {
            // SAFETY: as above.
            (live.coders, values) = unsafe { K::trits(tables, live.coders, values) };
        }
        Mix::Trits | Mix::Any => each!(N, |i| {
            // SAFETY: as above.
            let cells = unsafe { streams[i].row_values(ats[i]) };
            // SAFETY: as above.
            live.coders[i] = unsafe { V::refine::<K>(tables[i], live.coders[i], cells) };
        }),
    }
    if M::MIX != Mix::Trits || V::NARROW {
        each!(N, |i| {
            // SAFETY: as above.
            let cells = unsafe { streams[i].row_values(ats[i]) };
            // SAFETY: as above.
            unsafe { V::put::<K>(values[i], cells) };
        });
    }
    let mut words = [&[0; REFILL_BYTES]; N];
    each!(N, |i| words[i] = streams[i].words(live.cursors[i]));
    // SAFETY: as above.
    let (coders, taken) = unsafe { K::refills(live.coders, words) };
    live.coders = coders;
    each!(N, |i| live.cursors[i] += taken[i]);
    if M::MIX != Mix::Trits {
        let mut any = 0;
        each!(N, |i| any |= escapes[i]);
        if any != 0 {
            each!(N, |i| if escapes[i] != 0 {
                let before = (live.coders[i], live.cursors[i]);
                // SAFETY: as above.
                (live.coders[i], live.cursors[i]) =
                    unsafe { streams[i].escapes::<K>(escapes[i], values[i], ats[i], before) };
            });
        }
    }
    live
}

/// Decodes streams in lockstep, so that their dependency chains overlap.
///
/// # Safety
/// As [`Kernel`].
#[inline(always)]
pub(super) unsafe fn decode<K: Kernel, V: KernelCell, const N: usize>(
    bank: &TableBank,
    tokens: usize,
    jobs: [StreamJob<'_, V>; N],
) -> [Result<Fit, StreamFault>; N] {
    const { assert!(N >= 1 && N <= 4, "as many as are written out") };
    let streams = jobs.map(|job| Stream::new(bank, tokens, job));
    let steps = streams.each_ref().map(Stream::steps);
    let mix = steps.iter().map(|(_, mix)| *mix).reduce(Mix::with);
    let steps = steps.each_ref().map(|(steps, _)| steps.as_slice());
    // SAFETY: the caller's promise, here and below.
    match mix.unwrap_or(Mix::Any) {
        // SAFETY: as above.
        Mix::Stages => unsafe { lockstep::<K, V, OfStages, N>(tokens, streams, steps) },
        // SAFETY: as above.
        Mix::Trits => unsafe { lockstep::<K, V, OfTrits, N>(tokens, streams, steps) },
        // SAFETY: as above.
        Mix::Either if V::NARROW => unsafe { lockstep::<K, V, OfEither, N>(tokens, streams, steps) },
        // SAFETY: as above.
        Mix::Either | Mix::Any => unsafe { lockstep::<K, V, OfAny, N>(tokens, streams, steps) },
    }
}

/// As [`decode`], for streams whose steps are all of the kind `M`.
///
/// # Safety
/// As [`Kernel`].
#[allow(clippy::needless_range_loop, reason = "one index of several lists")]
#[inline(always)]
unsafe fn lockstep<K: Kernel, V: KernelCell, M: Mixed, const N: usize>(
    tokens: usize,
    mut streams: [Stream<'_, V>; N],
    steps: [&[Step<'_>]; N],
) -> [Result<Fit, StreamFault>; N] {
    let lengths = steps.map(<[_]>::len);
    let common = lengths.into_iter().min().unwrap_or(0);
    // SAFETY: the caller's promise, here and below.
    let mut live = Live::<K, N> { coders: [unsafe { K::load(&[0; LANES]) }; N], cursors: [0; N] };
    // SAFETY: as above.
    each!(N, |i| live.coders[i] = unsafe { K::load(&streams[i].scalar.states) });
    for row in 0..tokens / LANES {
        for c in 0..common {
            if M::MIX == Mix::Any {
                each!(N, |i| {
                    let before = (live.coders[i], live.cursors[i]);
                    // SAFETY: as above; `c` and `row` are in range.
                    (live.coders[i], live.cursors[i]) =
                        unsafe { alone::<K, V>(&mut streams[i], &steps[i][c], (c, row), before) };
                });
            } else {
                let mut next = [&steps[0][c]; N];
                each!(N, |i| next[i] = &steps[i][c]);
                // SAFETY: as above.
                live = unsafe { together::<K, V, M, N>(&mut streams, next, row, live) };
            }
        }
        each!(N, |i| for c in common..lengths[i] {
            let before = (live.coders[i], live.cursors[i]);
            // SAFETY: as above.
            (live.coders[i], live.cursors[i]) =
                unsafe { alone::<K, V>(&mut streams[i], &steps[i][c], (c, row), before) };
        });
    }
    let mut ends = [[0; LANES]; N];
    // SAFETY: as above.
    each!(N, |i| unsafe { K::store(live.coders[i], &mut ends[i]) });
    let mut ends = ends.iter().zip(live.cursors);
    streams.map(|stream| match ends.next() {
        Some((lanes, at)) => stream.finish(lanes, at),
        None => Err(StreamFault::Underrun), // there are as many
    })
}
