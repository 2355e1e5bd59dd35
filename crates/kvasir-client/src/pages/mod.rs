//! The destination of loads: an engine's pages, in the type of its cache.

mod device;
mod host;
mod read;
mod rows;
mod sink;
mod table;

use kvasir_codec::KvSink;
use kvasir_types::{KvDtype, ModelSpec};

use crate::Error;

pub use device::{DeviceBytes, DeviceDecode, DeviceDecoder, DevicePart, DeviceTimes, PartOutcome};
pub use host::HostPages;
#[cfg(feature = "testing")]
pub(crate) use host::widen;
pub use kvasir_codec::Rows;
pub use read::PageRead;
pub use rows::PageRows;
pub(crate) use sink::TableSink;
pub(crate) use table::WriteGate;
pub use table::{BlockTable, Shard};

/// A page of an engine's KV memory, as a block table names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// Index of the page.
    pub index: u32,
    /// How often it had been reassigned when the table was made.
    pub generation: u64,
}

/// An engine's page memory, of one device. Its values are of the model's type
/// ([`ModelSpec::kv_dtype`](kvasir_types::ModelSpec)), so a write is a copy and converts nothing. With the feature `testing`,
/// `testing::check_page_store` checks an implementation.
///
/// ```
/// use std::sync::Mutex;
/// use kvasir_client::pages::{PageRef, PageRows, PageStore};
///
/// /// Pages of 16 slots, of a model with one layer of 2 heads × 64 values in 16 bits: `[plane][slot][head][element]`.
/// struct Pages(Mutex<Vec<(u64, Vec<u8>)>>);
/// const ROW: usize = 64 * 2;
///
/// impl PageStore for Pages {
///     fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
///         let Ok(mut pages) = self.0.lock() else { return false };
///         match pages.get_mut(page.index as usize) {
///             Some((generation, bytes)) if *generation == page.generation => {
///                 let slot = rows.plane() as usize * 16 + rows.slots().start;
///                 rows.copy_to_bytes(&mut bytes[(slot * 2 + rows.heads().start) * ROW..], ROW, 2 * ROW);
///                 true
///             }
///             _ => false,
///         }
///     }
/// }
/// ```
pub trait PageStore: Send + Sync {
    /// Writes rows into one page.
    ///
    /// If the page has another generation by now, or does not exist, writes nothing and returns false. The
    /// check and the write must be atomic with respect to reassignment. Layer and heads of `rows` are
    /// relative to the device, as described by the table's [`Shard`]; values are of the model's type. Several
    /// threads write concurrently.
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool;

    /// The device that holds the pages, if it decodes chunks itself. What it does not decode is decoded on the CPU
    /// and comes through [`write`](Self::write).
    fn device(&self) -> Option<&dyn DeviceDecoder> {
        None
    }

    /// Copies rows into `to`, for [`Session::save_pages`](crate::Session::save_pages). `to` takes layers and heads as the
    /// model counts them, and tokens from the first one that is read.
    ///
    /// If one of the pages has another generation by now, or does not exist, returns false, and what `to` was given is not
    /// used. Pages must not be reassigned between that check and the last copy out of them. It may block: it is called on a
    /// thread for that.
    ///
    /// # Errors
    /// Why the rows cannot be read, as a sentence for the save's outcome. Without an implementation of its own, a store
    /// cannot be read: engines with such a store save from a [`KvSource`](kvasir_codec::KvSource).
    fn read_rows(&self, rows: &PageRead<'_>, to: &mut dyn KvSink) -> Result<bool, String> {
        let _ = (rows, to);
        Err("this store of pages does not read: save from a `KvSource`".into())
    }
}

/// Rejects models whose caches cannot be written into pages.
///
/// # Errors
/// [`Error::Config`] for caches of 8-bit integers.
pub(crate) fn check_dtype(spec: &ModelSpec) -> Result<(), Error> {
    match spec.kv_dtype {
        KvDtype::Bf16 | KvDtype::F16 | KvDtype::F32 | KvDtype::Fp8E4m3 => Ok(()),
        KvDtype::Int8 => Err(Error::Config {
            what: "an int8 cache cannot be loaded into pages, because the model's spec has no scales for it: register \
                   the model with a cache of bf16, f16, f32 or fp8_e4m3, and quantise in the engine"
                .into(),
        }),
    }
}
