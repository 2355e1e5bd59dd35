//! Reference engine: an example of how an engine embeds Kvasir.
//!
//! - [`Model`]: a Llama-family decoder that keeps its KV in pages ([`paged`]);
//! - [`quality`]: the cost of a lossy cache, in nats, perplexity and agreement.
//!
//! ```
//! use kvasir_engine::{Model, Sampling};

//!
//! # fn main() -> Result<(), kvasir_engine::EngineError> {
//! let model = Model::kvasir_tiny()?;
//! let prompt = model.tokenizer().encode("It was a bright cold morning in")?;
//! let mut kv = model.calculate_kv(&prompt)?;
//! let answer = model.generate_with_kv(&mut kv, &prompt, 4, &Sampling::Greedy)?;
//! assert_eq!(answer.len(), 4);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod calibration;
mod error;
pub mod limits;
pub mod logits;
mod model;
pub mod openai;
pub mod paged;
pub mod quality;
pub mod serving;
mod tokenizer;
pub mod training;

pub use calibration::calibrate;
pub use error::{ConfigError, EngineError, PagedError};
pub use logits::Logits;
pub use model::{LlamaConfig, Model, Observer, Sampling, StepItem, TINY_PROFILE, Unobserved};
pub use paged::{PagePool, PagedKv, PagedSink};
pub use tokenizer::Tokenizer;
