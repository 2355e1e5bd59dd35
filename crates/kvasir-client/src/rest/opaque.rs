//! Opaque objects: bytes under the caller's keys.
//!
//! Where the replicas of the service are known, each key has its own, and a request for several keys is divided among them.

use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{
    future::{join_all, try_join_all},
    stream,
};
use kvasir_api::{
    ExplainObjectsResponse, MEDIA_NEW_OBJECTS, NewObject, ObjectsLookup, ObjectsRequest, ObjectsResponse,
    PayloadRange, ReadObjectsRequest, StoredObject, WriteObjectsRequest, WriteObjectsResponse, WrittenObject,
    routes,
};
use kvasir_types::{Name, ObjectKey};
use reqwest::{
    Method, Response,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};

use super::{Client, body, upload_pacer::transfer_time_max};
use crate::{Error, limits};

/// Size of the length field before an object's bytes.
const LENGTH_BYTES: usize = 8;

impl Client {
    /// Stores bytes under a key. When this returns, they are durable. A key's bytes are immutable; storing
    /// the same bytes again succeeds.
    ///
    /// # Errors
    /// `object_exists` if the key has other bytes; `body_too_large`, `storage_quota`, `store_unavailable`.
    pub async fn put_opaque(
        &self,
        namespace: &Name,
        key: &ObjectKey,
        bytes: Bytes,
    ) -> Result<StoredObject, Error> {
        let (this, path) = (self.for_object(namespace, key), routes::object(namespace, key));
        let request = || {
            let request = this.request(Method::PUT, &path).header(CONTENT_LENGTH, bytes.len());
            request.timeout(transfer_time_max(bytes.len())).body(bytes.clone())
        };
        body::read_json(this.send_again(request).await?).await
    }

    /// Stores several objects with one request to each replica, at most [`ObjectsRequest::KEYS_MAX`] and together at most as
    /// many bytes as one object may have. Returns the outcome of each; those without a problem are durable.
    ///
    /// # Errors
    /// If the outcome of some of them is unknown, after all others were written: the same objects may be written again.
    pub async fn write_opaque(
        &self,
        namespace: &Name,
        objects: &[(ObjectKey, Bytes)],
    ) -> Result<Vec<WrittenObject>, Error> {
        let replicas = self.by_replica(namespace, objects.iter().map(|(key, _)| key));
        let write = async |(client, indices): (Self, Vec<usize>)| {
            let own: Vec<_> = indices.iter().map(|index| objects[*index].clone()).collect();
            let written = client.write_to_one(namespace, &own).await?;
            Ok::<_, Error>(indices.into_iter().zip(written))
        };
        // Those of other replicas are stored although one fails.
        let written = join_all(replicas.into_iter().map(write)).await;
        let written: Vec<_> = written.into_iter().collect::<Result<_, _>>()?;
        let mut written: Vec<_> = written.into_iter().flatten().collect();
        written.sort_unstable_by_key(|(index, _)| *index);
        Ok(written.into_iter().map(|(_, object)| object).collect())
    }

    async fn write_to_one(
        &self,
        namespace: &Name,
        objects: &[(ObjectKey, Bytes)],
    ) -> Result<Vec<WrittenObject>, Error> {
        let new =
            |(key, bytes): &(ObjectKey, Bytes)| NewObject { key: key.clone(), bytes: bytes.len() as u64 };
        let head = WriteObjectsRequest { objects: objects.iter().map(new).collect() };
        let head = serde_json::to_vec(&head).map_err(|e| Error::protocol(e.to_string()))?;
        let length = u32::try_from(head.len()).map_err(|e| Error::protocol(e.to_string()))?;
        let head = Bytes::from([&length.to_le_bytes()[..], &head].concat());
        let parts: Vec<Bytes> =
            std::iter::once(head).chain(objects.iter().map(|(_, bytes)| bytes.clone())).collect();
        let total: usize = parts.iter().map(Bytes::len).sum();
        let path = routes::objects_write(namespace);
        let request = || {
            let body = stream::iter(parts.clone().into_iter().map(Ok::<_, std::io::Error>));
            let request = self.request(Method::POST, &path).header(CONTENT_TYPE, MEDIA_NEW_OBJECTS);
            let request = request.header(CONTENT_LENGTH, total).timeout(transfer_time_max(total));
            request.body(reqwest::Body::wrap_stream(body))
        };
        let WriteObjectsResponse { objects: written } =
            body::read_json(self.send_again(request).await?).await?;
        if written.len() == objects.len() {
            Ok(written)
        } else {
            Err(Error::protocol("the response does not have one outcome per object".to_owned()))
        }
    }

    /// The bytes under a key.
    ///
    /// # Errors
    /// `unknown_object`, `corrupt_chunk`.
    pub async fn get_opaque(&self, namespace: &Name, key: &ObjectKey) -> Result<Vec<u8>, Error> {
        let this = self.for_object(namespace, key);
        let request = this.request(Method::GET, &routes::object(namespace, key));
        body::read_bounded(this.send(request).await?, limits::OBJECT_BYTES_MAX).await
    }

    /// Sizes of the objects of the leading `keys`, up to the first that is not stored; at most
    /// [`ObjectsRequest::KEYS_MAX`] keys.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn lookup_opaque(&self, namespace: &Name, keys: &[ObjectKey]) -> Result<Vec<u64>, Error> {
        Ok(self.sizes_of_opaque(namespace, keys, false).await?.into_iter().map_while(|size| size).collect())
    }

    /// Sizes of all stored objects among `keys`; at most [`ObjectsRequest::KEYS_MAX`] keys. Each key that is
    /// not stored may cost the service a request to its store.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn lookup_opaque_each(
        &self,
        namespace: &Name,
        keys: &[ObjectKey],
    ) -> Result<Vec<Option<u64>>, Error> {
        self.sizes_of_opaque(namespace, keys, true).await
    }

    async fn sizes_of_opaque(
        &self,
        namespace: &Name,
        keys: &[ObjectKey],
        gaps: bool,
    ) -> Result<Vec<Option<u64>>, Error> {
        let path = routes::objects_lookup(namespace);
        let lookup = async |(client, indices): (Self, Vec<usize>)| {
            let own = indices.iter().map(|index| keys[*index].clone()).collect();
            let request = client.with_json(Method::POST, &path, &ObjectsLookup { keys: own, gaps })?;
            let found: ObjectsResponse = client.json(request).await?;
            Ok::<_, Error>(indices.into_iter().zip(found.objects))
        };
        let replicas = self.by_replica(namespace, keys);
        let found = try_join_all(replicas.into_iter().map(lookup)).await?;
        let mut sizes = vec![None; keys.len()];
        for (index, object) in found.into_iter().flatten() {
            sizes[index] = object.map(|object| object.bytes);
        }
        Ok(sizes)
    }

    /// The bytes of the leading `keys`, up to the first that is not stored; at most
    /// [`ObjectsRequest::KEYS_MAX`] keys.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn read_opaque(&self, namespace: &Name, keys: &[ObjectKey]) -> Result<Vec<Vec<u8>>, Error> {
        self.read_collected(namespace, keys, &[]).await
    }

    /// Like [`read_opaque`](Self::read_opaque), but of each key the bytes in its range, as far as the object has them: none of
    /// an object that ends before it. At most [`ObjectsRequest::KEYS_MAX`] keys.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn read_opaque_ranges(
        &self,
        namespace: &Name,
        wanted: &[(ObjectKey, Range<u64>)],
    ) -> Result<Vec<Vec<u8>>, Error> {
        let range = |Range { start, end }: &Range<u64>| {
            Some(PayloadRange { first: *start, bytes: end.saturating_sub(*start) })
        };
        let wanted = wanted.iter().map(|(key, wanted)| (key.clone(), range(wanted)));
        let (keys, ranges): (Vec<_>, Vec<_>) = wanted.unzip();
        self.read_collected(namespace, &keys, &ranges).await
    }

    async fn read_collected(
        &self,
        namespace: &Name,
        keys: &[ObjectKey],
        ranges: &[Option<PayloadRange>],
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut objects: Vec<Vec<u8>> = vec![Vec::new(); keys.len()];
        let take = |index: usize, _: usize, piece: &[u8]| objects[index].extend_from_slice(piece);
        let count = self.read_pieces(namespace, keys, ranges, take).await?;
        objects.truncate(count);
        Ok(objects)
    }

    /// Like [`read_opaque`](Self::read_opaque), but passes the bytes as they arrive: the index of the
    /// object's key in `keys`, the object's length, and its next bytes. Several objects may arrive at once, and some
    /// behind the first that is not stored. An empty object is passed once, without bytes. Returns the number of
    /// leading objects.
    ///
    /// # Errors
    /// As for every request: see [`Error`]. Bytes already passed remain valid; where one replica fails, those of the others
    /// have all been passed.
    pub async fn read_opaque_pieces(
        &self,
        namespace: &Name,
        keys: &[ObjectKey],
        take: impl FnMut(usize, usize, &[u8]) + Send,
    ) -> Result<usize, Error> {
        self.read_pieces(namespace, keys, &[], take).await
    }

    /// As [`read_opaque_pieces`](Self::read_opaque_pieces), of each object the bytes in the key's range; without any, all bytes.
    async fn read_pieces(
        &self,
        namespace: &Name,
        keys: &[ObjectKey],
        ranges: &[Option<PayloadRange>],
        take: impl FnMut(usize, usize, &[u8]) + Send,
    ) -> Result<usize, Error> {
        let path = routes::objects_read(namespace);
        let take = Mutex::new(take);
        let read = async |(client, indices): (Self, Vec<usize>)| {
            let own = ReadObjectsRequest {
                keys: indices.iter().map(|index| keys[*index].clone()).collect(),
                ranges: indices.iter().filter_map(|index| ranges.get(*index).copied()).collect(),
            };
            let request = client.request(Method::POST, &path).json(&own);
            let bytes_max = |index: &usize| {
                let range = ranges.get(*index).copied().flatten();
                let bytes = range.and_then(|range| usize::try_from(range.bytes).ok());
                bytes.unwrap_or(usize::MAX).min(limits::OBJECT_BYTES_MAX)
            };
            let mut objects = Objects::new(indices.iter().map(bytes_max).collect());
            let mut response = client.send(request).await?;
            while let Some(part) = objects.next_part(&mut response).await? {
                let mut take = take.lock().unwrap_or_else(PoisonError::into_inner);
                objects
                    .take_apart(&part, &mut |own, bytes, piece: &[u8]| take(indices[own], bytes, piece))?;
            }
            Ok::<_, Error>(indices.get(objects.end()?).copied())
        };
        // Each ends with its own answer or error, and all others are read.
        let missing = join_all(self.by_replica(namespace, keys).into_iter().map(read)).await;
        let missing = missing.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(missing.into_iter().flatten().min().unwrap_or(keys.len()))
    }

    /// How many of the leading `keys` have an object, and why the next one has none; at most
    /// [`ObjectsRequest::KEYS_MAX`] keys. For a page of an engine, the causes say in which fields the engine that asked for it
    /// differs from the closest one that stores.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn explain_opaque(
        &self,
        namespace: &Name,
        keys: Vec<ObjectKey>,
    ) -> Result<ExplainObjectsResponse, Error> {
        let path = routes::OBJECTS_EXPLAIN.replace("{namespace}", namespace.as_str());
        let mut explained = self.json(self.with_json(Method::POST, &path, &ObjectsRequest { keys })?).await?;
        self.explain_by_identities(namespace, &mut explained).await?;
        Ok(explained)
    }

    /// Removes the bytes under a key.
    ///
    /// # Errors
    /// `unknown_object`.
    pub async fn delete_opaque(&self, namespace: &Name, key: &ObjectKey) -> Result<(), Error> {
        let this = self.for_object(namespace, key);
        this.send_removal(this.request(Method::DELETE, &routes::object(namespace, key))).await
    }
}

/// Parses the body of a response with objects as it arrives.
struct Objects {
    /// Most bytes accepted of each object that was asked for, in their order.
    asked: Vec<usize>,
    /// Number of complete objects.
    count: usize,
    /// The bytes received of the next object's length field.
    head: Vec<u8>,
    /// Length of the object in progress, and its remaining bytes.
    open: Option<(usize, usize)>,
    /// Time left to wait for the object with this index and length; of an object without a known length, for that.
    time_left: (Duration, (usize, usize)),
}

impl Objects {
    fn new(asked: Vec<usize>) -> Self {
        let time_left = (transfer_time_max(0), (0, 0));
        Self { asked, count: 0, head: Vec::with_capacity(LENGTH_BYTES), open: None, time_left }
    }

    /// The next part of the body, or an error once an object comes slower than any that is waited for.
    async fn next_part(&mut self, response: &mut Response) -> Result<Option<Bytes>, Error> {
        let arriving = (self.count, self.open.map_or(0, |(length, _)| length));
        if self.time_left.1 != arriving {
            self.time_left = (transfer_time_max(arriving.1), arriving);
        }
        body::next_part(response, &mut self.time_left.0).await
    }

    /// Passes the index, the length and the next bytes of each object in the next part of the body.
    fn take_apart(
        &mut self,
        mut part: &[u8],
        take: &mut impl FnMut(usize, usize, &[u8]),
    ) -> Result<(), Error> {
        while self.open.is_some() || !part.is_empty() {
            let (length, left) = match self.open {
                Some(open) => open,
                None => {
                    let (bytes, behind) = part.split_at(part.len().min(LENGTH_BYTES - self.head.len()));
                    self.head.extend_from_slice(bytes);
                    part = behind;
                    let Ok(length) = self.head.as_slice().try_into().map(u64::from_le_bytes) else { break };
                    self.head.clear();
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    if self.asked.get(self.count).is_none_or(|most| length > *most) {
                        let what = "an object that is too long, or that was not requested";
                        return Err(Error::protocol(what.to_owned()));
                    }
                    (length, length)
                }
            };
            let (piece, behind) = part.split_at(left.min(part.len()));
            take(self.count, length, piece);
            part = behind;
            if piece.len() < left {
                self.open = Some((length, left - piece.len()));
                break;
            }
            self.open = None;
            self.count += 1;
        }
        Ok(())
    }

    /// The number of objects.
    fn end(self) -> Result<usize, Error> {
        if self.open.is_none() && self.head.is_empty() {
            Ok(self.count)
        } else {
            Err(Error::protocol("the response ended early".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;
    use crate::limits::READ_TIMEOUT;

    fn body(objects: &[Vec<u8>]) -> Vec<u8> {
        let with_length = |object: &Vec<u8>| [&(object.len() as u64).to_le_bytes(), &object[..]].concat();
        objects.iter().flat_map(with_length).collect()
    }

    #[test]
    fn objects_are_the_same_however_the_body_is_cut() {
        let objects: Vec<Vec<u8>> = [0, 1, 7, 8, 0, 300, 0].map(|bytes| vec![bytes as u8; bytes]).to_vec();
        let body = body(&objects);
        for size in 1..=body.len() {
            let (mut found, mut taken) = (Vec::<Vec<u8>>::new(), Objects::new(vec![300; objects.len()]));
            for part in body.chunks(size) {
                let mut take = |place: usize, length: usize, piece: &[u8]| {
                    assert_eq!(length, objects[place].len());
                    found.resize_with(place + 1, Vec::new);
                    found[place].extend_from_slice(piece);
                };
                taken.take_apart(part, &mut take).expect("a sound body");
            }
            assert_eq!(taken.end().expect("a whole body"), objects.len());
            assert_eq!(found, objects, "in parts of {size}");
        }
    }

    #[test]
    fn what_nobody_asked_for_is_refused_and_what_is_cut_is_told() {
        let body = body(&[vec![1; 5], vec![2; 5]]);
        for asked in [vec![5], vec![5, 4]] {
            assert!(Objects::new(asked).take_apart(&body, &mut |_, _, _| {}).is_err());
        }
        for cut in 0..body.len() {
            let mut objects = Objects::new(vec![5; 2]);
            objects.take_apart(&body[..cut], &mut |_, _, _| {}).expect("sound as far as it goes");
            assert_eq!(objects.end().is_ok(), cut == 0 || cut == 13, "cut at {cut}");
        }
    }

    /// No pause is as long as the silence that is borne.
    #[tokio::test(start_paused = true)]
    async fn an_object_that_trickles_is_given_up_and_many_may_take_their_time() {
        let read = async |objects: Vec<Vec<u8>>, size: usize| {
            let parts: Vec<Bytes> = body(&objects).chunks(size).map(Bytes::copy_from_slice).collect();
            let parts = stream::iter(parts).then(|part| async {
                tokio::time::sleep(READ_TIMEOUT / 4).await;
                Ok::<_, std::io::Error>(part)
            });
            let response = axum::http::Response::new(reqwest::Body::wrap_stream(parts));
            let (mut response, mut taken) =
                (Response::from(response), Objects::new(vec![100; objects.len()]));
            while let Some(part) = taken.next_part(&mut response).await? {
                taken.take_apart(&part, &mut |_, _, _| {})?;
            }
            taken.end()
        };
        assert_eq!(read(vec![vec![1; 8]; 9], 16).await.expect("each comes in time"), 9);
        let slow = read(vec![vec![1; 100]], 8).await;
        assert!(matches!(slow, Err(Error::Slow { .. })), "{slow:?}");
    }
}
