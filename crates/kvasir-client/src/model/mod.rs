//! A model at the service: its codec, and the namespaces in which its token chains begin.

mod binding;
mod codec;
mod decoders;
mod stored;
mod writer;

pub(crate) use binding::Binding;
pub(crate) use codec::Codec;
pub use stored::{ProfileState, StoredProfile, stored_profiles};
pub(crate) use writer::{Sample, Unsuitable, Writer};
