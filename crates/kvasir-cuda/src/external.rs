//! Kernels that are not the product's.

/// An entry point of the caller's device code, compiled and kept like the product's kernels, for benchmarks
/// of other decoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExternalKernel {
    /// Name of the entry point, which takes one record by value.
    pub name: &'static str,
    /// The translation unit that holds it, one of `files`; none of the product's names.
    pub source: &'static str,
    /// `(name, text)` of files that include each other and the product's headers
    /// ([`SOURCES`](kvasir_kernels::SOURCES)).
    pub files: &'static [(&'static str, &'static str)],
    /// Threads of a CTA.
    pub threads: u32,
}
