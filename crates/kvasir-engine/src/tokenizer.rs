//! Text to token ids and back.

use crate::error::EngineError;

/// A Hugging Face `tokenizer.json`.
#[derive(Debug)]
pub struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    pub(crate) fn from_json(bytes: &[u8]) -> Result<Self, EngineError> {
        tokenizers::Tokenizer::from_bytes(bytes).map(Self).map_err(EngineError::Tokenizer)
    }

    /// Token ids of a text, without special tokens.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        let encoding = self.0.encode_fast(text, false).map_err(EngineError::Tokenizer)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of token ids; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`].
    pub fn decode(&self, tokens: &[u32]) -> Result<String, EngineError> {
        self.0.decode(tokens, false).map_err(EngineError::Tokenizer)
    }
}
