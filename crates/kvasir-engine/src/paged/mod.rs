//! Paged KV: a pool of fixed-size pages shared by sequences, and per sequence a block table.
//!
//! Memory layout, per layer and plane: `[page][token in page][head][element]` in the model's KV type.
//!
//! ```text
//! PagePool   layer 0 K: │page 0│page 1│page 2│…   layer 0 V: │page 0│…    …
//! PagedKv    block table [2, 0, …], len 21  ──►  token 17 lives in page 0, slot 1 (pages of 16)
//! BlockTable (page, generation) pairs: a page that went back to the pool meanwhile has a newer generation,
//!            so a load that was cancelled, or outlived its sequence, cannot write into another's memory
//! ```
//!
//! The values may lie on a device instead ([`PagePool::on_device`]), in its own layout.

mod device;
mod kv;
mod pool;
mod sink;
mod store;

pub use kv::PagedKv;
pub use pool::PagePool;
pub use sink::PagedSink;

#[cfg(test)]
mod tests;
