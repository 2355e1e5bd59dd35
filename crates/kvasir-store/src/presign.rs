//! Presigned URLs: clients access the store without its credentials.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::{HeaderName, HeaderValue, Method, Request};
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt,
    client::{HttpClient, HttpConnector, HttpRequestBody, ReqwestConnector},
    path::Path,
    signer::{SignedUrlOptions, Signer},
};
use url::Url;

const CHECKSUM: HeaderName = HeaderName::from_static("x-amz-checksum-sha256");
/// SHA-256 of the empty body. Probes are not empty, so a store that verifies checksums must refuse it.
const SHA256_OF_NOTHING: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27,
    0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// Signs URLs of one store.
#[derive(Debug, Clone)]
pub struct Presigner {
    signer: Arc<dyn Signer>,
    /// Signs requests that this service sends itself.
    own: Arc<dyn Signer>,
    http: HttpClient,
    checksums: Arc<OnceLock<bool>>,
}

impl Presigner {
    /// Signs with `signer` for clients and with `own` for the probe; `options` are for the probe's own
    /// request.
    ///
    /// # Errors
    /// The store's own error for invalid client options.
    pub fn new(
        signer: Arc<dyn Signer>,
        own: Arc<dyn Signer>,
        options: &ClientOptions,
    ) -> object_store::Result<Self> {
        let http = ReqwestConnector::default().connect(options)?;
        Ok(Self { signer, own, http, checksums: Arc::default() })
    }

    /// A URL to `GET` an object, including `Range`.
    ///
    /// # Errors
    /// If there are no credentials to sign with.
    pub async fn get(&self, path: &Path, life: Duration) -> object_store::Result<Url> {
        self.signer.signed_url(Method::GET, path, life).await
    }

    /// A URL to `PUT` exactly these bytes, and the headers that are part of the signature.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn put(
        &self,
        path: &Path,
        sha256: &[u8; 32],
        life: Duration,
    ) -> object_store::Result<(Url, BTreeMap<String, String>)> {
        sign_put(&*self.signer, path, sha256, life).await
    }

    /// Whether the store verifies uploads against their signed checksum: true once a probe saw it refuse a
    /// wrong one.
    pub fn has_checksums(&self) -> bool {
        self.checksums.get().copied().unwrap_or(false)
    }

    /// Sends bytes with a wrong checksum to `path` and checks whether the store accepts them.
    ///
    /// # Errors
    /// If the store cannot be reached with signed URLs.
    pub async fn probe(&self, store: &dyn ObjectStore, path: &Path) -> object_store::Result<bool> {
        const BODY: &[u8] = b"kvasir probe";
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic {
            store: "presigned URL",
            source,
        };
        let life = Duration::from_secs(60);
        let (url, headers) = sign_put(&*self.own, path, &SHA256_OF_NOTHING, life).await?;
        let mut request = Request::put(url.as_str());
        for (name, value) in &headers {
            request = request.header(name, value);
        }
        let request = request.body(HttpRequestBody::from(BODY.to_vec())).map_err(|e| failed(e.into()))?;
        let answer = self.http.execute(request).await.map_err(|e| failed(e.into()))?;
        let taken = answer.status().is_success();
        if taken {
            store.delete(path).await?;
        }
        // A store that refuses for another reason (403: a proxy rewrote a signed header) does not support
        // direct uploads.
        let refused = answer.status().as_u16() == 400;
        if !taken && !refused {
            return Err(failed(format!("the checksum probe got the response {}", answer.status()).into()));
        }
        let _ = self.checksums.set(refused);
        Ok(refused)
    }
}

async fn sign_put(
    signer: &dyn Signer,
    path: &Path,
    sha256: &[u8; 32],
    life: Duration,
) -> object_store::Result<(Url, BTreeMap<String, String>)> {
    let digest = base64(sha256);
    let checksum = HeaderValue::from_str(&digest).unwrap_or_else(|_| unreachable!("base64 is visible ASCII"));
    // The length needs no header (which the signer would not sign): the digest binds it.
    let options = SignedUrlOptions::new().with_signed_header(CHECKSUM, checksum);
    let url = signer.signed_url_opts(Method::PUT, path, life, &options).await?;
    Ok((url, [(CHECKSUM.to_string(), digest)].into()))
}

/// Base64 with padding, as in the checksum headers.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, i| bits << 8 | u32::from(three.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let digit = (bits >> (18 - 6 * i)) & 63;
            out.push(if i <= three.len() { char::from(ALPHABET[digit as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_rfc_4648() {
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), expected);
        }
        assert_eq!(base64(&SHA256_OF_NOTHING), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }
}
