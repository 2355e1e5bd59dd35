//! Rows of the read positions in other replicas' journals: `p · log · replica → number of the last batch`.

use kvasir_store::layout::JournalLog;
use kvasir_types::Name;

use super::{IndexError, database::HotIndex};

const POSITION: u8 = b'p';

/// The last batch that was read of a replica's log.
pub(crate) type LogPosition = (JournalLog, Name, u64);

fn key(log: JournalLog, replica: &Name) -> Vec<u8> {
    let mut key = vec![POSITION, log as u8];
    key.extend(replica.as_str().as_bytes());
    key
}

pub(super) fn put(index: &dyn HotIndex, (log, replica, n): &LogPosition) -> Result<(), IndexError> {
    index.put(&key(*log, replica), &n.to_le_bytes())
}

pub(super) fn remove(index: &dyn HotIndex, log: JournalLog, replica: &Name) -> Result<(), IndexError> {
    index.remove(&key(log, replica))
}

pub(super) fn all(index: &dyn HotIndex) -> Result<Vec<LogPosition>, IndexError> {
    let mut all = Vec::new();
    index.scan(&[POSITION], &mut |key, value| {
        let [POSITION, log, replica @ ..] = key else { return Ok(false) };
        let corrupt = || IndexError::Corrupt { what: "the row of a journal's position".to_owned() };
        let log = JournalLog::ALL.into_iter().find(|known| *known as u8 == *log).ok_or_else(corrupt)?;
        let replica = str::from_utf8(replica).ok().and_then(|text| text.parse().ok()).ok_or_else(corrupt)?;
        let n = u64::from_le_bytes(value.try_into().map_err(|_| corrupt())?);
        all.push((log, replica, n));
        Ok(true)
    })?;
    Ok(all)
}
