//! A model as the service knows it: its codec, and the namespaces that its token chains begin in.

mod binding;
mod codec;
mod stored;
mod writer;

pub(crate) use binding::Binding;
pub(crate) use codec::Codec;
pub use stored::{ProfileState, StoredProfile, stored_profiles};
pub(crate) use writer::{Sample, Writer};
