//! The generations of pages, and who uses them now.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use kvasir_client::pages::PageRef;

/// Keeps pages from being reassigned while somebody writes them for a load, or reads them for a save.
#[derive(Debug)]
pub(crate) struct PageClaims {
    pages: Mutex<Vec<PageState>>,
    released: Condvar,
}

#[derive(Debug, Clone, Copy, Default)]
struct PageState {
    generation: u64,
    claims: u32,
}

/// Pages that are not reassigned before this is dropped.
#[derive(Debug)]
pub(crate) struct PageClaim<'a> {
    claims: &'a PageClaims,
    pages: &'a [PageRef],
}

impl PageClaims {
    pub(crate) fn new(count: usize) -> Self {
        Self { pages: Mutex::new(vec![PageState::default(); count]), released: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PageState>> {
        // No code panics while it holds the lock.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page as a table made now names it; `None` if there is no such page.
    pub(crate) fn page(&self, index: u32) -> Option<PageRef> {
        let generation = self.lock().get(index as usize)?.generation;
        Some(PageRef { index, generation })
    }

    /// Claims all of `pages`; `None` if one of them was reassigned, or does not exist.
    pub(crate) fn claim<'a>(&'a self, pages: &'a [PageRef]) -> Option<PageClaim<'a>> {
        let mut states = self.lock();
        let is_ours = |page: &PageRef| {
            states.get(page.index as usize).is_some_and(|state| state.generation == page.generation)
        };
        if !pages.iter().all(is_ours) {
            return None;
        }
        for page in pages {
            states[page.index as usize].claims += 1;
        }
        Some(PageClaim { claims: self, pages })
    }

    /// Gives pages a new generation, so that nobody claims them any more, and waits for those who have.
    pub(crate) fn reassign(&self, pages: &[u32]) {
        let mut states = self.lock();
        for page in pages {
            if let Some(state) = states.get_mut(*page as usize) {
                state.generation += 1;
            }
        }
        let are_claimed = |states: &mut Vec<PageState>| {
            pages.iter().any(|page| states.get(*page as usize).is_some_and(|state| state.claims > 0))
        };
        drop(self.released.wait_while(states, are_claimed).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for PageClaim<'_> {
    fn drop(&mut self) {
        let mut states = self.claims.lock();
        for page in self.pages {
            if let Some(state) = states.get_mut(page.index as usize) {
                state.claims -= 1;
            }
        }
        drop(states);
        self.claims.released.notify_all();
    }
}
