//! Request classes (ATC'25 "KVCache Cache in the Wild": reuse differs by tenant, by request type and by turn).

use std::collections::HashMap;

use super::limits;

/// A small number that stands for a [`RequestClass`] in one [`ClassTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(u16);

impl ClassId {
    /// Requests of unknown class, and of classes beyond the table's limits.
    pub const OTHER: Self = Self(0);

    /// The number; below [`limits::CLASSES_MAX`] if it comes from a [`ClassTable`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Turn of a conversation, in buckets that widen: first turns differ most from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TurnBucket {
    /// The first turn, or a request outside a conversation.
    First,
    /// The second turn.
    Second,
    /// The third turn.
    Third,
    /// Turns 4 to 7.
    Few,
    /// Turns 8 to 15.
    Many,
    /// Turn 16 and later.
    Long,
}

impl TurnBucket {
    /// The bucket of a turn counted from 1 (0 is read as 1).
    pub const fn of(turn: u32) -> Self {
        match turn {
            0 | 1 => Self::First,
            2 => Self::Second,
            3 => Self::Third,
            4..=7 => Self::Few,
            8..=15 => Self::Many,
            _ => Self::Long,
        }
    }

    /// The turns of the bucket, for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::First => "1",
            Self::Second => "2",
            Self::Third => "3",
            Self::Few => "4-7",
            Self::Many => "8-15",
            Self::Long => "16+",
        }
    }
}

/// Tenant, application and kind of a request: the unit by which reuse statistics are kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestClass {
    /// Tenant, from the credential.
    pub tenant: String,
    /// Request type as the caller names it (text, file, search, main, subagent…); empty when unknown.
    pub kind: String,
    /// Bucket of the turn.
    pub turn: TurnBucket,
}

/// Interns request classes, up to [`limits::CLASSES_MAX`] in total and [`limits::CLASSES_PER_TENANT_MAX`] per
/// tenant; further classes share [`ClassId::OTHER`].
#[derive(Debug)]
pub struct ClassTable {
    ids: HashMap<RequestClass, ClassId>,
    names: Vec<Option<RequestClass>>,
    per_tenant: HashMap<String, usize>,
}

impl Default for ClassTable {
    fn default() -> Self {
        Self { ids: HashMap::new(), names: vec![None], per_tenant: HashMap::new() }
    }
}

impl ClassTable {
    /// The id of `class`, created if there is room.
    pub fn intern(&mut self, class: &RequestClass) -> ClassId {
        if let Some(id) = self.ids.get(class) {
            return *id;
        }
        let of_tenant = self.per_tenant.get(&class.tenant).copied().unwrap_or(0);
        if self.names.len() >= limits::CLASSES_MAX || of_tenant >= limits::CLASSES_PER_TENANT_MAX {
            return ClassId::OTHER;
        }
        let id = ClassId(u16::try_from(self.names.len()).expect("CLASSES_MAX is below 2^16"));
        self.per_tenant.insert(class.tenant.clone(), of_tenant + 1);
        self.ids.insert(class.clone(), id);
        self.names.push(Some(class.clone()));
        id
    }

    /// The class of an id; `None` for [`ClassId::OTHER`] and ids of other tables.
    pub fn class(&self, id: ClassId) -> Option<&RequestClass> {
        self.names.get(id.index()).and_then(Option::as_ref)
    }

    /// The classes in order of their index; the first is [`ClassId::OTHER`].
    pub fn classes(&self) -> impl Iterator<Item = Option<&RequestClass>> {
        self.names.iter().map(Option::as_ref)
    }

    /// Ids given out, [`ClassId::OTHER`] included.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether only [`ClassId::OTHER`] exists.
    pub fn is_empty(&self) -> bool {
        self.names.len() == 1
    }
}

const _: () = assert!(limits::CLASSES_MAX < u16::MAX as usize);
