//! Opaque objects: bytes under keys of the caller's.

use bytes::Bytes;
use kvasir_api::{ObjectsRequest, ObjectsResponse, StoredObject, routes};
use kvasir_types::{Name, ObjectKey};
use reqwest::{Method, header::CONTENT_LENGTH};

use super::{Client, body};
use crate::{Error, limits};

impl Client {
    /// Stores bytes under a key. When this returns, they are durable. A key keeps its bytes: the same may be stored again.
    ///
    /// # Errors
    /// `object_exists` where the key has other bytes; `body_too_large`, `storage_quota`, `store_unavailable`.
    pub async fn put_opaque(
        &self,
        namespace: &Name,
        key: &ObjectKey,
        bytes: Bytes,
    ) -> Result<StoredObject, Error> {
        let path = routes::object(namespace, key);
        let request = || {
            let request = self.request(Method::PUT, &path).header(CONTENT_LENGTH, bytes.len());
            request.timeout(limits::UPLOAD_TIMEOUT).body(bytes.clone())
        };
        let response = self.send_again(request).await?;
        let body = body::read_bounded(response, limits::CONTROL_BYTES_MAX).await?;
        serde_json::from_slice(&body).map_err(|e| Error::protocol(e.to_string()))
    }

    /// The bytes under a key.
    ///
    /// # Errors
    /// `unknown_object`, `corrupt_chunk`.
    pub async fn get_opaque(&self, namespace: &Name, key: &ObjectKey) -> Result<Vec<u8>, Error> {
        let request = self.request(Method::GET, &routes::object(namespace, key));
        body::read_bounded(self.send(request).await?, limits::OBJECT_BYTES_MAX).await
    }

    /// Sizes of the objects of the leading ones of `keys`, up to the first that is not there; at most
    /// [`ObjectsRequest::KEYS_MAX`] keys.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn lookup_opaque(&self, namespace: &Name, keys: &[ObjectKey]) -> Result<Vec<u64>, Error> {
        let request = ObjectsRequest { keys: keys.to_vec() };
        let path = routes::objects_lookup(namespace);
        let found: ObjectsResponse = self.json(self.with_json(Method::POST, &path, &request)?).await?;
        Ok(found.objects.into_iter().map(|object| object.bytes).collect())
    }

    /// The bytes of the leading ones of `keys`, up to the first that is not there; at most [`ObjectsRequest::KEYS_MAX`] keys.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn read_opaque(&self, namespace: &Name, keys: &[ObjectKey]) -> Result<Vec<Vec<u8>>, Error> {
        let request = ObjectsRequest { keys: keys.to_vec() };
        let request = self.request(Method::POST, &routes::objects_read(namespace)).json(&request);
        let mut response = self.send(request).await?;
        let (mut objects, mut held) = (Vec::with_capacity(keys.len()), Vec::new());
        while let Some(part) = response.chunk().await.map_err(Error::Transport)? {
            held.extend_from_slice(&part);
            while let Some((length, rest)) = held.split_first_chunk::<8>() {
                let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
                if length > limits::OBJECT_BYTES_MAX || objects.len() == keys.len() {
                    return Err(Error::protocol(
                        "an object that is too long, or that nobody asked for".to_owned(),
                    ));
                }
                let Some(object) = rest.get(..length) else { break };
                objects.push(object.to_vec());
                held.drain(..8 + length);
            }
        }
        if held.is_empty() { Ok(objects) } else { Err(Error::protocol("the answer ended early".to_owned())) }
    }

    /// Removes the bytes under a key.
    ///
    /// # Errors
    /// `unknown_object`.
    pub async fn delete_opaque(&self, namespace: &Name, key: &ObjectKey) -> Result<(), Error> {
        let request = self.request(Method::DELETE, &routes::object(namespace, key));
        self.send(request.timeout(self.config.control_timeout)).await.map(|_| ())
    }
}
