//! Lists of keys for S3 clients: in the order of the keys' bytes, those with a common prefix combined.
//!
//! Keys come from markers in the bucket. Each is verified: only readable objects are listed.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};
use kvasir_store::{
    StoreError,
    layout::{Key, ListedKey},
};
use kvasir_types::{Name, ObjectKey};

use super::{Reads, opaque::OpaqueObject};
use crate::{error::ObjectError, limits};

/// The requested keys.
#[derive(Debug, Clone, Default)]
pub struct KeyListing {
    /// Their prefix.
    pub prefix: String,
    /// Keys that contain it after the prefix are combined into one entry: their common beginning, up to and
    /// including it. Empty: none are.
    pub delimiter: String,
    /// Only keys after this one.
    pub start_after: String,
    /// Only entries after this one: the last one of the previous page.
    pub after: String,
    /// Maximum number of entries.
    pub limit: usize,
}

/// A page of a list of keys.
#[derive(Debug, Default)]
pub struct KeyPage {
    /// Objects, in order.
    pub objects: Vec<ListedObject>,
    /// Common beginnings of keys with a delimiter, in order.
    pub common_prefixes: Vec<String>,
    /// The last entry, if there are more after it.
    pub next: Option<String>,
}

/// An object of a list.
#[derive(Debug)]
pub struct ListedObject {
    /// Its key.
    pub key: ObjectKey,
    /// The object.
    pub object: OpaqueObject,
    /// When it was stored, in milliseconds since 1970 by the store's clock.
    pub stored_ms: i64,
}

impl KeyListing {
    /// The entry that a key belongs to, if it is requested at all.
    fn entry<'a>(&self, key: &'a str) -> Option<Entry<'a>> {
        let rest = key.strip_prefix(&self.prefix).filter(|_| key > self.start_after.as_str())?;
        let cut = (!self.delimiter.is_empty()).then(|| rest.find(&self.delimiter)).flatten();
        let (text, is_prefix) = match cut {
            Some(at) => (&key[..self.prefix.len() + at + self.delimiter.len()], true),
            None => (key, false),
        };
        (text > self.after.as_str()).then_some(Entry { text, is_prefix })
    }
}

/// One line of a list: a key, or the common beginning of several.
struct Entry<'a> {
    text: &'a str,
    is_prefix: bool,
}

impl Reads {
    /// Lists keys of a namespace whose objects were stored with a listing entry; a sealed tenant has none.
    /// Includes every object that was acknowledged before the call and is not removed.
    ///
    /// # Errors
    /// [`ObjectError::Catalog`] and [`Chunk`](ObjectError::Chunk) if the store cannot be read.
    pub async fn list_keys(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        listing: &KeyListing,
    ) -> Result<KeyPage, ObjectError> {
        let (entries, next) = self.entries(tenant, namespace, listing).await?;
        let mut page = KeyPage { next, ..KeyPage::default() };
        let found = entries.into_iter().map(|(text, stored_ms)| async move {
            let Some(stored_ms) = stored_ms else { return Ok((text, None)) };
            let Ok(key) = text.parse::<ObjectKey>() else { return Ok((String::new(), None)) };
            match self.opaque(tenant, namespace, &key).await {
                Ok(object) => Ok((text, Some(ListedObject { key, object, stored_ms }))),
                // Removed, but its marker is not yet.
                Err(ObjectError::Unknown { .. }) => Ok((String::new(), None)),
                Err(error) => Err(error),
            }
        });
        let found: Vec<_> = found.collect();
        let mut found = stream::iter(found).buffered(limits::LISTED_PARALLEL);
        while let Some((text, object)) = found.try_next().await? {
            match object {
                Some(object) => page.objects.push(object),
                None if !text.is_empty() => page.common_prefixes.push(text),
                None => {}
            }
        }
        Ok(page)
    }

    /// The first entries by their markers, each with its time of storage if it is a key, and the last of them
    /// if there are more.
    async fn entries(
        &self,
        tenant: &Name,
        namespace: &Name,
        listing: &KeyListing,
    ) -> Result<(BTreeMap<String, Option<i64>>, Option<String>), StoreError> {
        let mut entries = BTreeMap::new();
        if listing.limit == 0 {
            return Ok((entries, None));
        }
        let layout = self.bucket.layout();
        let start = [&listing.prefix, &listing.start_after, &listing.after].into_iter().max();
        let start = start.map(|start| ListedKey::key_prefix(layout, tenant, namespace, start));
        let all = layout.listed_prefix(tenant, namespace);
        let mut markers = self.bucket.list_behind(&all, &start.unwrap_or(all.clone()), "listing keys");
        // A walk of folders has no reliable order.
        let is_ordered = self.bucket.lists_in_order();
        while let Some((key, meta)) = markers.try_next().await? {
            let Key::Listed(ListedKey { key, .. }) = key else { continue };
            let key = key.as_str();
            let Some(entry) = listing.entry(key) else {
                if is_ordered && key > listing.prefix.as_str() && !key.starts_with(&listing.prefix) {
                    break;
                }
                continue;
            };
            let stored_ms = (!entry.is_prefix).then_some(meta.last_modified.timestamp_millis());
            let known = entries.entry(entry.text.to_owned()).or_insert(stored_ms);
            *known = (*known).max(stored_ms);
            if entries.len() > listing.limit && is_ordered {
                break;
            }
            if entries.len() > listing.limit + 1 {
                entries.pop_last();
            }
        }
        let mut next = None;
        if entries.len() > listing.limit {
            entries.pop_last();
            next = entries.last_key_value().map(|(last, _)| last.clone());
        }
        Ok((entries, next))
    }
}
