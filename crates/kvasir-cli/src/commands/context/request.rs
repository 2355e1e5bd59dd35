//! What happened to a request of an engine on this host. vLLM's connector records it in a folder of its user.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::error::{CliError, CliResult, Exit};

/// The connector's record of a request. The names are those of `kvasir.vllm`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RequestRecord {
    request: String,
    ended_at_ms: u64,
    prompt_tokens: u64,
    in_vllm_tokens: u64,
    stored_tokens: Option<u64>,
    planned_tokens: u64,
    saved_tokens: u64,
    reason: String,
    detail: String,
}

impl RequestRecord {
    /// As text.
    pub(super) fn text(&self) -> String {
        let stored = self.stored_tokens.map_or("not known".to_owned(), |tokens| tokens.to_string());
        format!(
            "{}: {} tokens in its prompt, ended at {} ms since 1970\n{}: {}\n  tokens in vLLM: {}; found in Kvasir: {stored}; planned to load: {}; stored or being stored: {}",
            self.request,
            self.prompt_tokens,
            self.ended_at_ms,
            self.reason,
            self.detail,
            self.in_vllm_tokens,
            self.planned_tokens,
            self.saved_tokens,
        )
    }
}

/// The records of a request, oldest first. vLLM appends a suffix to the ids that its clients see, and splits
/// a request for several answers into several internal requests.
pub(super) fn find(request: &str, folder: Option<&Path>) -> CliResult<Vec<RequestRecord>> {
    let folders =
        folder.map_or_else(|| children(&std::env::temp_dir(), "kvasir-"), |folder| vec![folder.to_owned()]);
    let mut found: Vec<RequestRecord> = folders
        .iter()
        .flat_map(|folder| children(folder, "requests-"))
        .filter(|file| file.is_file())
        // Skip a file of another user, and one that was deleted in the meantime.
        .filter_map(|file| fs::read_to_string(file).ok())
        .flat_map(|text| text.lines().filter_map(|line| record_of(line, request)).collect::<Vec<_>>())
        .collect();
    found.sort_by_key(|record| record.ended_at_ms);
    if found.is_empty() {
        let message = format!("no engine on this host has a record of request {request}");
        let advice = "Run this on the engine's host, as the engine's user, after the request has ended. Each engine keeps its last 4 \
             to 8 MiB of records, and none if its log says that it runs without Kvasir.";
        return Err(CliError::new(Exit::Nothing, message, advice));
    }
    Ok(found)
}

fn record_of(line: &str, request: &str) -> Option<RequestRecord> {
    // The line that is being written is still incomplete.
    let record: RequestRecord = serde_json::from_str(line).ok()?;
    is_of(&record.request, request).then_some(record)
}

/// `ID`, `ID-SUFFIX`, or `N_ID-SUFFIX` for one of several answers.
fn is_of(internal: &str, request: &str) -> bool {
    let whole =
        |id: &str| id.strip_prefix(request).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    let of_several =
        internal.split_once('_').filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()));
    whole(internal) || of_several.is_some_and(|(_, id)| whole(id))
}

fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    named.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::is_of;

    #[test]
    fn ids_that_clients_see_are_found() {
        for internal in ["cmpl-7", "cmpl-7-0", "cmpl-7-0-9f0acc71", "2_cmpl-7-9f0acc71"] {
            assert!(is_of(internal, "cmpl-7"), "{internal}");
        }
        for internal in ["cmpl-70", "a_cmpl-7", "cmpl", "x-cmpl-7"] {
            assert!(!is_of(internal, "cmpl-7"), "{internal}");
        }
    }
}
