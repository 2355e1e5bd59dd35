//! Fetcher and uploader that engines embed.

pub mod fetcher;
