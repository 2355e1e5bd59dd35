//! Choosing a row kernel at run time.

#[cfg(target_arch = "x86_64")]
use super::x86_64::Avx512;
use crate::rows::{Scaling, scale_rows_portable};

/// Makes rows of direct scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowKernel(Path);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl RowKernel {
    /// The fastest.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(cpu) = Avx512::new() {
            return Self(Path::Avx512(cpu));
        }
        Self(Path::Portable)
    }

    /// All, slowest first.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Self> {
        vec![Self(Path::Portable), Self::best()]
    }

    /// `rows[token][element]` from `values[element][token]`; the caller checked the lengths.
    pub(crate) fn scale_rows(self, scaling: &Scaling<'_>, tokens: usize, values: &[i32], rows: &mut [f32]) {
        match self.0 {
            Path::Portable => {
                let all = (0..scaling.elements(), 0..tokens);
                scale_rows_portable(scaling, tokens, values, rows, all);
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(cpu) => cpu.scale_rows(scaling, tokens, values, rows),
        }
    }
}
