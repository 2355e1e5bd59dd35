//! Wrong bodies.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use kvasir_container::Head;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, Result, memory::InMemory, path::Path};

use super::{Dice, Fault, failure};

/// A faulty body of `range` of an object, and whether it differs from the stored one.
pub(super) async fn spoiled(
    inner: &InMemory,
    dice: &mut Dice,
    path: &Path,
    range: &Range<u64>,
    truth: &Bytes,
    fault: Fault,
) -> (BoxStream<'static, Result<Bytes>>, bool) {
    let mut bytes = truth.to_vec();
    match fault {
        Fault::Short => bytes.truncate(dice.below(bytes.len())),
        Fault::Reset => {
            bytes.truncate(dice.below(bytes.len()));
            return (stream::iter([Ok(bytes.into()), Err(failure("reset"))]).boxed(), false);
        }
        Fault::Trickle => return (trickle(truth, dice), false),
        Fault::Long => bytes.extend(b"more"),
        Fault::Flip if !bytes.is_empty() => {
            let (at, bit) = (dice.below(bytes.len()), dice.below(8));
            bytes[at] ^= 1 << bit;
        }
        Fault::OtherRange if !bytes.is_empty() => {
            let turn = dice.below(bytes.len());
            bytes.rotate_left(turn);
        }
        Fault::OtherSection => {
            if let Some(other) = other_section(inner, dice, path, range).await {
                bytes = other;
            }
        }
        Fault::OtherObject => {
            if let Some(mut other) = other_object(inner, dice, path, range).await {
                // As long as was asked for, so that lengths give nothing away.
                other.resize(bytes.len(), 0);
                bytes = other;
            }
        }
        _ => {}
    }
    let differs = bytes != *truth;
    (stream::iter([Ok(Bytes::from(bytes))]).boxed(), differs)
}

/// The same bytes, a few at a time; sometimes too slowly to be waited for.
fn trickle(bytes: &Bytes, dice: &mut Dice) -> BoxStream<'static, Result<Bytes>> {
    let pause = Duration::from_millis([20, 400, 15_000][dice.below(3)]);
    let step = bytes.len().div_ceil(6).max(1);
    let parts: Vec<Bytes> = bytes.chunks(step).map(Bytes::copy_from_slice).collect();
    let parts = stream::iter(parts).then(move |part| async move {
        tokio::time::sleep(pause).await;
        Ok(part)
    });
    parts.boxed()
}

/// The same number of bytes from the start of another piece of the object.
async fn other_section(
    inner: &InMemory,
    dice: &mut Dice,
    path: &Path,
    range: &Range<u64>,
) -> Option<Vec<u8>> {
    let object = inner.get(path).await.ok()?.bytes().await.ok()?;
    let head = Head::parse(&object).ok()?;
    let starts = head.pieces().map(|(_, _, entry)| entry.range.start).filter(|start| *start != range.start);
    let starts: Vec<u64> = starts.collect();
    let start = *starts.get(dice.below(starts.len()))? as usize;
    let wanted = (range.end - range.start) as usize;
    Some(object.iter().copied().cycle().skip(start).take(wanted).collect())
}

async fn other_object(inner: &InMemory, dice: &mut Dice, path: &Path, range: &Range<u64>) -> Option<Vec<u8>> {
    let mut others: Vec<_> = inner.list(None).try_collect::<Vec<_>>().await.unwrap_or_default();
    others.retain(|m| m.location != *path && m.location.as_ref().ends_with(".kvc"));
    others.sort_by(|a, b| a.location.cmp(&b.location));
    let other = others.get(dice.below(others.len()))?;
    let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
    Some(inner.get_opts(&other.location, options).await.ok()?.bytes().await.ok()?.to_vec())
}
