//! Progress callbacks of a pass, which may stop it.

use std::ops::ControlFlow;

/// The return value of a progress callback.
pub trait ProgressAnswer {
    /// Whether the pass continues.
    fn goes_on(self) -> bool;
}

/// Never stops it.
impl ProgressAnswer for () {
    fn goes_on(self) -> bool {
        true
    }
}

impl ProgressAnswer for ControlFlow<()> {
    fn goes_on(self) -> bool {
        self.is_continue()
    }
}
