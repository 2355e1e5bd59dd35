//! JSON bodies of requests: what is taken is written and read as the same.
#![no_main]

use kvasir_api::{ContextChange, ContextRequest, LookupRequest, UploadRequest};
use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fn same_again<T>(data: &[u8])
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    if let Ok(request) = serde_json::from_slice::<T>(data) {
        let json = serde_json::to_vec(&request).expect("it was JSON");
        assert_eq!(serde_json::from_slice::<T>(&json).expect("reads"), request);
    }
}

fuzz_target!(|data: &[u8]| {
    same_again::<LookupRequest>(data);
    same_again::<ContextRequest>(data);
    same_again::<ContextChange>(data);
    same_again::<UploadRequest>(data);
});
