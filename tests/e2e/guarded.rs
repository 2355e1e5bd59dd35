//! A service with credentials.

use kvasir_api::{NamespaceRequest, NamespaceResponse, Role, routes};
use kvasir_server::{Config, NewToken};
use kvasir_store::StoreConfig;
use kvasir_tests::{chunks, service::Service};
use kvasir_types::{ModelId, ProfileHash, RootHash};
use reqwest::{Method, Response};
use tempfile::TempDir;

/// A service that knows the tokens of a tenants file.
pub(crate) struct Guarded {
    pub(crate) service: Service,
    /// The store and the tenants file, until the end of the test.
    directory: TempDir,
}

impl Guarded {
    /// `entries` go into the tenants file; the store is a directory.
    pub(crate) async fn start(entries: &str) -> Self {
        Self::start_with(entries, None, |_| {}).await
    }

    /// As [`start`](Self::start), over another store and with other settings.
    pub(crate) async fn start_with(
        entries: &str,
        store: Option<StoreConfig>,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let directory = TempDir::new().expect("a directory");
        let tenants = directory.path().join("tenants.toml");
        std::fs::write(&tenants, entries).expect("writes");
        let store = store.unwrap_or_else(|| {
            StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"))
        });
        let service = Service::start_with(store, &directory.path().join("cache"), |config| {
            config.auth.tenants_file = Some(tenants);
            change(config);
        })
        .await;
        Self { service, directory }
    }

    /// Other entries of the tenants file; the service takes them in within the reload interval.
    pub(crate) fn write_tenants(&self, entries: &str) {
        std::fs::write(self.directory.path().join("tenants.toml"), entries).expect("writes");
    }

    pub(crate) async fn send(
        &self,
        token: &str,
        method: Method,
        path: &str,
        body: impl Into<reqwest::Body>,
    ) -> Response {
        let url = format!("http://{}{path}", self.service.address);
        let request = self.service.http.request(method, url).bearer_auth(token).body(body);
        request.send().await.expect("an answer")
    }

    /// Registers model and profile as the holder of `token`, and returns the root of namespace `n`.
    pub(crate) async fn prepare(&self, token: &str) -> (ModelId, RootHash) {
        let spec = chunks::spec();
        let model_id = spec.model_id();
        let json = serde_json::to_vec(&spec).expect("serialises");
        assert!(self.send(token, Method::POST, routes::MODELS, json).await.status().is_success());
        let profile = routes::profile(&model_id, &ProfileHash::of(chunks::PROFILE));
        assert!(self.send(token, Method::PUT, &profile, chunks::PROFILE).await.status().is_success());
        (model_id, self.root(token, model_id).await)
    }

    /// The root of namespace `n`.
    pub(crate) async fn root(&self, token: &str, model_id: ModelId) -> RootHash {
        let request = NamespaceRequest { namespace: "n".parse().expect("a name"), model_id };
        let json = serde_json::to_vec(&request).expect("serialises");
        let answer = self.send(token, Method::POST, routes::NAMESPACES, json).await;
        let NamespaceResponse { root } = answer.json().await.expect("its JSON");
        root
    }
}

pub(crate) fn token(tenant: &str, role: Role) -> NewToken {
    NewToken::generate("test", &tenant.parse().expect("a name"), role)
}
