//! The Kvasir service.
