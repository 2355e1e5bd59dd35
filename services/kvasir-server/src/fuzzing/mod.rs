//! Entry points of the fuzz targets: the operator's files, credentials, and requests. Compiled only for
//! fuzzing and tests.

mod requests;

pub use crate::{
    auth::{fuzz_tenants_file as tenants_file, fuzz_web_token as web_token},
    config::fuzz_file as config_file,
};
pub use requests::{api_requests, s3_requests};

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
        damaged("api", 200, api_requests);
        damaged("s3", 200, s3_requests);
    }
}
