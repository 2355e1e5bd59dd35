//! Layered KV-cache bitstream: transforms, quantisers, rANS, profiles.

pub mod rans;
