//! Lists of keys and of buckets.

use data_encoding::HEXLOWER;
use kvasir_storage::{KeyListing, KeyPage};
use s3s::{S3Request, S3Result, dto::*, s3_error};

use super::{
    downloads,
    errors::S3Failure,
    operations::{Operations, namespace, principal},
};
use crate::{auth::Principal, limits};

/// The contents common to both versions of a list.
struct Page {
    contents: Vec<Object>,
    common_prefixes: Vec<CommonPrefix>,
    next: Option<String>,
}

impl Operations {
    pub(super) async fn list_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<ListObjectsV2Output> {
        let principal = principal(&request)?;
        let input = request.input;
        let after = input.continuation_token.as_deref().map(read_token).transpose()?.unwrap_or_default();
        let listing = KeyListing {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            start_after: input.start_after.clone().unwrap_or_default(),
            after,
            limit: page_size(input.max_keys)?,
        };
        let encode = encoding(input.encoding_type.as_ref());
        let owner = input.fetch_owner.unwrap_or_default().then(|| owner(&principal));
        let page = self.page(&principal, &input.bucket, &listing, encode, owner).await?;
        let count = page.contents.len() + page.common_prefixes.len();
        Ok(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: input.prefix.map(|text| encode(&text)),
            delimiter: delimiter(input.delimiter, encode),
            start_after: input.start_after.map(|text| encode(&text)),
            encoding_type: input.encoding_type,
            max_keys: Some(listing.limit as i32),
            key_count: Some(count as i32),
            continuation_token: input.continuation_token,
            is_truncated: Some(page.next.is_some()),
            next_continuation_token: page.next.map(|last| token(&last)),
            contents: Some(page.contents),
            common_prefixes: Some(page.common_prefixes),
            ..ListObjectsV2Output::default()
        })
    }

    /// The first version, which older clients use.
    pub(super) async fn list_v1(&self, request: S3Request<ListObjectsInput>) -> S3Result<ListObjectsOutput> {
        let principal = principal(&request)?;
        let input = request.input;
        let listing = KeyListing {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            start_after: String::new(),
            after: input.marker.clone().unwrap_or_default(),
            limit: page_size(input.max_keys)?,
        };
        let encode = encoding(input.encoding_type.as_ref());
        let owner = Some(owner(&principal));
        let page = self.page(&principal, &input.bucket, &listing, encode, owner).await?;
        Ok(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: input.prefix.map(|text| encode(&text)),
            delimiter: delimiter(input.delimiter, encode),
            marker: Some(encode(&listing.after)),
            encoding_type: input.encoding_type,
            max_keys: Some(listing.limit as i32),
            is_truncated: Some(page.next.is_some()),
            next_marker: page.next.map(|last| encode(&last)),
            contents: Some(page.contents),
            common_prefixes: Some(page.common_prefixes),
            ..ListObjectsOutput::default()
        })
    }

    async fn page(
        &self,
        principal: &Principal,
        bucket: &str,
        listing: &KeyListing,
        encode: fn(&str) -> String,
        owner: Option<Owner>,
    ) -> S3Result<Page> {
        let namespace = namespace(bucket)?;
        let storage = self.state().caught_up_storage().await.map_err(S3Failure::from)?;
        if storage.store().seals(&principal.tenant) {
            return Err(s3_error!(
                NotImplemented,
                "the tenant's data is encrypted at rest; its keys are not stored in plain text, so they cannot be listed"
            ));
        }
        let page = storage.reads().list_keys(&principal.tenant, &namespace, listing).await;
        let KeyPage { objects, common_prefixes, next } = page.map_err(S3Failure::from)?;
        let contents = objects.into_iter().map(|listed| Object {
            key: Some(encode(listed.key.as_str())),
            size: Some(i64::try_from(listed.object.bytes()).unwrap_or(i64::MAX)),
            e_tag: Some(downloads::etag(&listed.object.etag())),
            last_modified: Some(downloads::timestamp(u64::try_from(listed.stored_ms).unwrap_or(0))),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            owner: owner.clone(),
            ..Object::default()
        });
        let common_prefixes =
            common_prefixes.into_iter().map(|prefix| CommonPrefix { prefix: Some(encode(&prefix)) });
        Ok(Page { contents: contents.collect(), common_prefixes: common_prefixes.collect(), next })
    }

    /// The namespaces that the tenant has used.
    pub(super) async fn namespaces(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<ListBucketsOutput> {
        let principal = principal(&request)?;
        let storage = self.state().storage().map_err(S3Failure::from)?;
        let names = storage.catalog().list_namespaces(&principal.tenant).await.map_err(S3Failure::from)?;
        // The time of first use is not recorded; clients require a date.
        let creation_date = Some(downloads::timestamp(0));
        let bucket = |name: kvasir_types::Name| Bucket {
            name: Some(name.to_string()),
            creation_date: creation_date.clone(),
            ..Bucket::default()
        };
        let buckets = Some(names.into_iter().map(bucket).collect());
        Ok(ListBucketsOutput { buckets, ..ListBucketsOutput::default() })
    }
}

/// Objects belong to the tenant, whichever of its credentials stored them.
fn owner(principal: &Principal) -> Owner {
    let tenant = principal.tenant.to_string();
    Owner { display_name: Some(tenant.clone()), id: Some(tenant) }
}

/// The delimiter of a response: an empty one counts as none.
fn delimiter(asked: Option<String>, encode: fn(&str) -> String) -> Option<String> {
    asked.filter(|text| !text.is_empty()).map(|text| encode(&text))
}

fn page_size(asked: Option<i32>) -> S3Result<usize> {
    let asked = asked.map(usize::try_from).transpose();
    let asked = asked.map_err(|_| s3_error!(InvalidArgument, "max-keys must be a whole number from 0"))?;
    Ok(asked.unwrap_or(limits::S3_LIST_KEYS_MAX).min(limits::S3_LIST_KEYS_MAX))
}

/// The encoding of keys: XML cannot represent all of them, so clients request escapes.
fn encoding(asked: Option<&EncodingType>) -> fn(&str) -> String {
    if asked.is_some_and(|asked| asked.as_str() == EncodingType::URL) { escaped } else { str::to_owned }
}

fn escaped(text: &str) -> String {
    let escape = |byte: u8| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(escape).collect()
}

/// The last entry of a page in characters that every client returns unchanged.
fn token(entry: &str) -> String {
    HEXLOWER.encode(entry.as_bytes())
}

fn read_token(token: &str) -> S3Result<String> {
    let entry = HEXLOWER.decode(token.as_bytes()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    entry.ok_or_else(|| s3_error!(InvalidArgument, "the continuation token is not valid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back() {
        for entry in ["", "a", "a/b/", "ä\u{0}<&"] {
            assert_eq!(read_token(&token(entry)).expect("ours"), entry);
        }
        for wrong in ["x", "0", "zz", "ff", "+1"] {
            assert!(read_token(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_are_escaped_where_asked() {
        let url = EncodingType::from_static(EncodingType::URL);
        assert_eq!(encoding(Some(&url))("a b/ä"), "a%20b/%C3%A4");
        assert_eq!(encoding(None)("a b"), "a b");
    }
}
