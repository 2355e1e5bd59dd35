//! Decodes tokens to text as they arrive: whole characters only, and nothing past a stop sequence.

use std::sync::Arc;

use crate::{error::EngineError, model::Model};

/// Decodes one answer.
#[derive(Debug)]
pub(super) struct Detokenizer {
    model: Arc<Model>,
    tokens: Vec<u32>,
    /// The text of `tokens[context..read]` has been returned. It is decoded again with the next tokens,
    /// because a token's text may depend on the previous one.
    context: usize,
    read: usize,
    stops: Vec<String>,
    /// Decoded but held back: it may be the beginning of a stop sequence.
    held: String,
    stopped: bool,
}

impl Detokenizer {
    pub(super) fn new(model: Arc<Model>, stops: Vec<String>) -> Self {
        let (tokens, held) = (Vec::new(), String::new());
        Self { model, tokens, context: 0, read: 0, stops, held, stopped: false }
    }

    /// Whether a stop sequence occurred.
    pub(super) const fn stopped(&self) -> bool {
        self.stopped
    }

    /// Tokens so far.
    pub(super) const fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Adds a token; returns the text that is now certain.
    pub(super) fn push(&mut self, token: u32) -> Result<String, EngineError> {
        self.tokens.push(token);
        let new = self.decode(false)?;
        Ok(self.pass(&new, false))
    }

    /// Returns the rest, including incomplete characters and a possible start of a stop sequence.
    pub(super) fn finish(&mut self) -> Result<String, EngineError> {
        let new = self.decode(true)?;
        Ok(self.pass(&new, true))
    }

    fn decode(&mut self, end: bool) -> Result<String, EngineError> {
        let tokenizer = self.model.tokenizer();
        let before = tokenizer.decode(&self.tokens[self.context..self.read])?;
        let all = tokenizer.decode(&self.tokens[self.context..])?;
        // A character whose last bytes have not arrived yet decodes to U+FFFD.
        let whole = end || !all.ends_with('\u{fffd}');
        match all.get(before.len()..) {
            Some(new) if whole && !new.is_empty() => {
                let new = new.to_owned();
                (self.context, self.read) = (self.read, self.tokens.len());
                Ok(new)
            }
            _ => Ok(String::new()),
        }
    }

    fn pass(&mut self, new: &str, end: bool) -> String {
        if self.stopped {
            return String::new();
        }
        self.held += new;
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let longest = |stop: &String| {
            (1..stop.len()).rev().find(|&len| stop.is_char_boundary(len) && self.held.ends_with(&stop[..len]))
        };
        let keep = if end { 0 } else { self.stops.iter().filter_map(longest).max().unwrap_or(0) };
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }
}
