//! Clients of opaque objects.

use bytes::Bytes;
use futures::TryStreamExt;
use kvasir_storage::{ByteRange, KeyListing, ObjectError, PutObject, Storage, hot::RequestHint};
use kvasir_tests::model::Outcome;
use kvasir_types::{ObjectKey, RouteKey};
use std::sync::Arc;

use crate::{
    client::{Book, body, namespace, tenant},
    node::Node,
};

/// Keys of a history. The last one is left to uploads in parts.
pub(crate) const KEYS: u8 = 4;
/// Keys that PUTs write as well.
pub(crate) const KEYS_OF_PUTS: u8 = KEYS - 1;
/// Values that are written under each.
pub(crate) const VALUES: u8 = 3;
/// The value of uploads in parts that are not completed: nobody may read it.
pub(crate) const UNCOMPLETED: u8 = VALUES;

fn key(number: u8) -> ObjectKey {
    format!("key-{number}").parse().expect("a key")
}

/// The route of a key.
pub(crate) fn route(number: u8) -> RouteKey {
    RouteKey::of_object(&namespace(), &key(number))
}

/// The bytes of a value say which key and value they are of.
pub(crate) fn payload(key: u8, value: u8) -> Vec<u8> {
    vec![key * (UNCOMPLETED + 1) + value; 41 + usize::from(value)]
}

/// What stores so many bytes under a key.
pub(crate) fn put_object(number: u8, bytes: u64) -> PutObject {
    PutObject {
        tenant: tenant(),
        namespace: namespace(),
        key: key(number),
        bytes,
        hint: RequestHint::default(),
        listed: true,
        reservation: None,
    }
}

async fn get(storage: &Arc<Storage>, number: u8) -> Result<Bytes, ObjectError> {
    let object = storage.reads().opaque(&tenant(), &namespace(), &key(number)).await?;
    let read = storage.reads().read_opaque(&object, ByteRange::Whole, &RequestHint::default()).await?;
    let parts: Vec<Bytes> = read.bytes.try_collect().await?;
    Ok(parts.concat().into())
}

async fn list(storage: &Arc<Storage>) -> Result<Vec<ObjectKey>, ObjectError> {
    let all = KeyListing { limit: 1_000, ..KeyListing::default() };
    let page = storage.reads().list_keys(&tenant(), &namespace(), &all).await?;
    Ok(page.objects.into_iter().map(|listed| listed.key).collect())
}

impl Book {
    /// Stores a value under a key.
    pub(crate) async fn put_key(&self, node: &Node, number: u8, value: u8) {
        let bytes = payload(number, value);
        let put = put_object(number, bytes.len() as u64);
        let begun = self.keys.borrow_mut().put_begins(number, value, self.now());
        let answer = node.run(node.storage.ingest().put_object(put, body(&bytes))).await;
        let outcome = match answer {
            Some(Ok(_)) => Outcome::Acknowledged,
            Some(Err(ObjectError::Exists { .. })) => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        self.put_of_key_ends(begun, outcome);
    }

    /// A PUT of a key ends, or the completion of an upload in parts.
    pub(crate) fn put_of_key_ends(&self, put: usize, outcome: Outcome) {
        drop(self.model());
        let judged = self.keys.borrow_mut().put_ends(put, self.now(), outcome);
        self.judge(judged);
    }

    /// Reads a key; a cache may always answer with nothing or an error.
    pub(crate) async fn get_key(&self, node: &Node, number: u8) {
        let begun = self.now();
        let Some(Ok(bytes)) = node.run(get(&node.storage, number)).await else { return };
        let value = (0..=UNCOMPLETED).find(|value| payload(number, *value) == bytes);
        drop(self.model());
        let judged = match value {
            Some(value) => self.keys.borrow().got(number, self.since(begun), value),
            None => Err(format!("key {number} has bytes of nobody")),
        };
        self.judge(judged);
    }

    /// Removes a key.
    pub(crate) async fn remove_key(&self, node: &Node, number: u8) {
        let begun = self.keys.borrow_mut().removal_begins(number, self.now());
        let removal = node.storage.lifecycle();
        let answer = node.run(removal.remove_object(&tenant(), &namespace(), &key(number))).await;
        let outcome = match answer {
            Some(Ok(())) => Outcome::Acknowledged,
            Some(Err(ObjectError::Unknown { .. })) => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        self.keys.borrow_mut().removal_ends(begun, self.now(), outcome);
    }

    /// Checks that a replica finds and lists the promised objects at the end. Returns their number.
    pub(crate) async fn find_owed_keys(&self, node: &Node) -> usize {
        drop(self.model());
        let owed = self.keys.borrow().owed(self.now());
        let listed = node.run(list(&node.storage)).await.and_then(Result::ok).unwrap_or_default();
        let is_sealed = node.storage.store().seals(&tenant());
        // One that is cut meanwhile answers nothing.
        let is_wrong = |is_found: bool| !is_found && !node.life.is_over();
        for (number, value) in &owed {
            if is_wrong(is_sealed || listed.contains(&key(*number))) {
                self.judge(Err(format!("key {number} owes value {value} and is not listed: {listed:?}")));
            }
        }
        for (number, value) in &owed {
            let found = node_result(node, *number).await;
            if is_wrong(found.as_deref() == Some(&payload(*number, *value)[..])) {
                self.judge(Err(format!("key {number} owes value {value} and has {found:?}")));
            }
        }
        owed.len()
    }
}

async fn node_result(node: &Node, number: u8) -> Option<Bytes> {
    node.run(get(&node.storage, number)).await?.ok()
}
