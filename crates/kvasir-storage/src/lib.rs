//! Object layout, hot index, hot tier, eviction.
