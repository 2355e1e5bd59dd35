//! Whoever is told how far a pass is may stop it there.

use std::ops::ControlFlow;

/// What the report of a pass's progress is answered with.
pub trait ProgressAnswer {
    /// Whether the pass goes on.
    fn goes_on(self) -> bool;
}

/// Nobody stops it.
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
