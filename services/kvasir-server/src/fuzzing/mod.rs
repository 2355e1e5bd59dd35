//! Entry points of the fuzz targets: the operator's files, credentials, and requests. Compiled only for
//! fuzzing and tests.

mod requests;

use kvasir_api::{ContextChange, ContextRequest, LookupRequest, UploadRequest};
use kvasir_store::seal::FileKeys;

pub use crate::{
    auth::{fuzz_tenants_file as tenants_file, fuzz_web_token as web_token},
    config::fuzz_file as config_file,
};
pub use requests::{api_requests, s3_requests};

/// Keys of encryption at rest, as a file and as a list in a variable.
pub fn keys_file(text: &str) {
    for keys in [FileKeys::parse(text), FileKeys::parse_list(text)].into_iter().flatten() {
        assert!(!keys.tenants().is_empty(), "nobody is sealed, and nothing says so");
        assert!(keys.may_follow(&keys).is_ok());
    }
}

/// JSON bodies of requests: what is taken is written and read as the same.
pub fn json_bodies(data: &[u8]) {
    same_again::<LookupRequest>(data);
    same_again::<ContextRequest>(data);
    same_again::<ContextChange>(data);
    same_again::<UploadRequest>(data);
}

fn same_again<T>(data: &[u8])
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    if let Ok(request) = serde_json::from_slice::<T>(data) {
        let json = serde_json::to_vec(&request).expect("it was JSON");
        assert_eq!(serde_json::from_slice::<T>(&json).expect("reads"), request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation;

    fn damaged(target: &str, count: u64, check: impl Fn(&[u8])) {
        let folder = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(folder).expect("a corpus");
        let seeds: Vec<_> =
            files.map(|file| std::fs::read(file.expect("a seed").path()).expect("reads")).collect();
        assert!(seeds.len() >= 3, "{} seeds of {target}", seeds.len());
        seeds.iter().for_each(|seed| check(seed));
        mutation::of(&seeds, count, check);
    }

    fn text(data: &[u8], check: impl Fn(&str)) {
        if let Ok(text) = std::str::from_utf8(data) {
            check(text);
        }
    }

    /// Replays the corpora without coverage feedback, so that past findings stay fixed.
    #[test]
    fn corpora_and_what_is_damaged_hold() {
        damaged("config_file", 500, |data| text(data, config_file));
        damaged("tenants_file", 500, tenants_file);
        damaged("web_token", 500, web_token);
        damaged("keys_file", 500, |data| text(data, keys_file));
        damaged("lookup", 500, json_bodies);
        damaged("api", 200, api_requests);
        damaged("s3", 200, s3_requests);
    }
}
