//! Room for request bodies that are kept whole: all tenants share it, and none takes all of it.

use std::collections::BTreeMap;

use kvasir_types::Name;
use parking_lot::Mutex;

use crate::limits;

/// Room for the bodies of all requests. The first [`limits::SHORT_BODY_BYTES`] of each need none.
pub(crate) static LONG_BODIES: BodyRoom =
    BodyRoom::new(limits::LONG_BODIES_BYTES_MAX / limits::SHORT_BODY_BYTES);

/// Room in units of [`limits::SHORT_BODY_BYTES`].
#[derive(Debug)]
pub(crate) struct BodyRoom(Mutex<RoomState>);

#[derive(Debug)]
struct RoomState {
    free: usize,
    /// By tenant; `None` before the tenant is known.
    held: BTreeMap<Option<Name>, usize>,
}

/// The room of one body; given back when dropped.
#[derive(Debug)]
pub(crate) struct HeldRoom {
    room: &'static BodyRoom,
    tenant: Option<Name>,
    units: usize,
}

impl BodyRoom {
    pub(crate) const fn new(units: usize) -> Self {
        Self(Mutex::new(RoomState { free: units, held: BTreeMap::new() }))
    }

    /// Room for an empty body.
    pub(crate) fn hold(&'static self, tenant: Option<Name>) -> HeldRoom {
        HeldRoom { room: self, tenant, units: 0 }
    }
}

impl HeldRoom {
    /// Takes or gives back room, for a body of `bytes` bytes. Returns false and changes nothing if there is too little: a
    /// tenant gets at most as much as it leaves to the others.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(1) / limits::SHORT_BODY_BYTES;
        if wanted == self.units {
            return true;
        }
        let mut state = self.room.0.lock();
        let before = state.held.get(&self.tenant).copied().unwrap_or(0);
        let (of_tenant, free) = (before + wanted - self.units, state.free + self.units);
        if wanted > self.units && free < wanted + of_tenant {
            return false;
        }
        state.free = free - wanted;
        if of_tenant == 0 {
            state.held.remove(&self.tenant);
        } else {
            state.held.insert(self.tenant.clone(), of_tenant);
        }
        self.units = wanted;
        true
    }
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = limits::SHORT_BODY_BYTES;

    #[test]
    fn one_tenant_leaves_as_much_to_the_others_as_it_has() {
        static ROOM: BodyRoom = BodyRoom::new(8);
        let [mut a, mut b] = ["a", "b"].map(|tenant| ROOM.hold(tenant.parse().ok()));
        assert!(a.resize(UNIT) && ROOM.0.lock().held.is_empty(), "a short body needs none");
        assert!(!a.resize(5 * UNIT + 1) && a.resize(4 * UNIT + 1));
        let mut more = ROOM.hold("a".parse().ok());
        assert!(more.resize(UNIT) && !more.resize(UNIT + 1), "as much as is left");
        assert!(!b.resize(3 * UNIT + 1) && b.resize(3 * UNIT));
        assert_eq!(ROOM.0.lock().free, 2);
        assert!(a.resize(3 * UNIT), "it gives back");
        drop((a, b));
        assert!(more.resize(4 * UNIT + 1));
        drop(more);
        let state = ROOM.0.lock();
        assert!(state.free == 8 && state.held.is_empty(), "{state:?}");
    }
}
