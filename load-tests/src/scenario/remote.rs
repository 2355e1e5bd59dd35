//! Scenarios against a service that runs already.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use super::spec::{Op, Scenario};
use crate::cluster::endpoints::Endpoints;

/// A service that runs already, on a real cluster for instance.
#[derive(Debug, Default, Args)]
pub(crate) struct RemoteArguments {
    /// URL of a replica of a running service, or of the load balancer before all replicas; repeatable.
    /// Without it, a service is started locally.
    #[arg(long = "url", value_name = "URL")]
    urls: Vec<String>,
    /// File with a tenant's token; once for each tenant that a scenario has.
    #[arg(long = "token-file", value_name = "FILE", requires = "urls")]
    token_files: Vec<PathBuf>,
}

impl RemoteArguments {
    /// The running service, if one is named.
    pub(crate) fn endpoints(&self) -> Result<Option<Endpoints>> {
        if self.urls.is_empty() {
            return Ok(None);
        }
        let urls: Vec<String> = self.urls.iter().map(|url| url.trim_end_matches('/').to_owned()).collect();
        for url in &urls {
            let is_http = url.starts_with("http://") || url.starts_with("https://");
            ensure!(is_http, "{url:?} is not the URL of a service: http://HOST:PORT or https://HOST");
        }
        let read = |file: &PathBuf| {
            let text =
                std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
            anyhow::Ok(text.trim().to_owned())
        };
        Ok(Some(Endpoints { urls, tokens: self.token_files.iter().map(read).collect::<Result<_>>()? }))
    }
}

/// Why a scenario cannot run against a service that this program did not start; `None` if it can.
pub(crate) fn unsupported_reason(endpoints: &Endpoints, scenario: &Scenario) -> Option<String> {
    if !scenario.fault.is_empty() {
        return Some("faults need a service that this program starts".into());
    }
    if scenario.data.rows > 0 {
        return Some("index rows need a service that this program starts".into());
    }
    let (has, needs) = (endpoints.tokens.len(), scenario.service.tenants);
    if has < needs {
        return Some(format!("{needs} tenants are needed, each with --token-file; there are {has}"));
    }
    if !scenario.service.quota.is_empty() {
        return Some("its quotas are not those of a running service".into());
    }
    let connects = scenario.load.iter().any(|load| load.op == Op::Connect);
    if connects && endpoints.urls.iter().any(|url| url.starts_with("https://")) {
        return Some("connections are counted without TLS, and a URL is https".into());
    }
    let works = scenario.load.iter().any(|load| matches!(load.op, Op::Gc | Op::Scrub));
    works.then(|| "jobs work on the whole store, including other tenants' data".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(text: &str) -> Scenario {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/");
        Scenario::open(&PathBuf::from(format!("{path}{text}.toml"))).unwrap()
    }

    #[test]
    fn a_running_service_takes_what_asks_for_nothing_of_its_processes() {
        let arguments = RemoteArguments { urls: vec!["https://kv.example/".into()], token_files: Vec::new() };
        let endpoints = arguments.endpoints().unwrap().unwrap();
        assert_eq!(endpoints.urls, ["https://kv.example"]);
        assert_eq!(unsupported_reason(&endpoints, &scenario("hot-read")), None);
        for (name, why) in [
            ("fault-errors", "faults"),
            ("namespace-1m", "rows"),
            ("noisy-tenant", "8 tenants"),
            ("connections", "TLS"),
            ("maintenance", "jobs"),
        ] {
            assert!(
                unsupported_reason(&endpoints, &scenario(name)).is_some_and(|reason| reason.contains(why)),
                "{name}"
            );
        }
        let wrong = RemoteArguments { urls: vec!["kv.example".into()], token_files: Vec::new() };
        assert!(wrong.endpoints().is_err());
        assert!(RemoteArguments::default().endpoints().unwrap().is_none());
    }
}
