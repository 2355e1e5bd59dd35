//! Measures how well the service's hit ratio curve estimates the hit ratio of a cache of another size.

use kvasir_eviction::{
    CURVE_SCALES, ClassTable, EvictionIndex, HitRatioCurve, PolicyKind, limits::REUSE_WINDOW_SECONDS,
};
use kvasir_replay::trace::TraceError;

use super::{TraceSource, lane::access_to, profile::TraceProfile, replay::class_of};

/// An estimate and the measured value, at one scale of one capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurveRow {
    /// Capacity of the cache that estimates, as a share of the trace's unique blocks.
    pub capacity: f64,
    /// How many times as large as that the estimated one is.
    pub scale: f64,
    /// Share of the accesses that a whole cache of that size finds.
    pub found: f64,
    /// Share that the curve estimates.
    pub estimated: f64,
}

/// Replays a trace through the curve of a cache of each capacity, and through whole caches of the sizes that it estimates.
///
/// Both count each block that is there, whatever is in front of it.
///
/// # Errors
/// As [`replay`](super::replay()).
pub fn compare_curve(
    trace: &TraceSource,
    kind: PolicyKind,
    capacities: &[f64],
) -> Result<Vec<CurveRow>, TraceError> {
    let (mut profile, mut classes) = (TraceProfile::default(), ClassTable::default());
    trace.for_each(|request| profile.note(request, class_of(request, &mut classes)))?;
    let profile = profile.finished()?;
    let mut rows = Vec::new();
    for capacity in capacities {
        let bytes = (profile.unique_blocks as f64 * capacity).round() as u64;
        let mut curve = HitRatioCurve::new(kind, bytes, 1.0, |block: &u64| *block);
        let mut caches =
            CURVE_SCALES.map(|scale| EvictionIndex::new(kind, (bytes as f64 * scale) as u64, 1.0));
        let (mut asked, mut found) = (0.0, [0.0; CURVE_SCALES.len()]);
        let mut before = None;
        let mut classes = ClassTable::default();
        trace.for_each_again(&profile, |request| {
            let class = class_of(request, &mut classes);
            // As in the curve: older accesses count less.
            let age = before.replace(request.at).map_or(0.0, |before| request.at.seconds_since(before));
            let keep = (-age / REUSE_WINDOW_SECONDS).exp();
            asked *= keep;
            found.iter_mut().for_each(|found| *found *= keep);
            asked += request.blocks.len() as f64;
            for (index, block) in request.blocks.iter().enumerate() {
                let access = access_to(request, class, index);
                curve.note(0, *block, &access, true);
                for (cache, found) in caches.iter_mut().zip(&mut found) {
                    if cache.contains(block) {
                        cache.touch(block, &access);
                        *found += 1.0;
                    } else {
                        cache.insert(0, *block, &access);
                    }
                }
            }
        })?;
        let ratios = curve.hit_ratios().unwrap_or_default();
        for (number, scale) in CURVE_SCALES.into_iter().enumerate() {
            rows.push(CurveRow {
                capacity: *capacity,
                scale,
                found: found[number] / asked,
                estimated: ratios[number],
            });
        }
    }
    Ok(rows)
}
