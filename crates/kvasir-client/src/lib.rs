//! Fetcher and uploader that engines embed.
