//! A service: its REST routes, and the models in it.

use std::sync::Arc;

use kvasir_client::{
    Kvasir, QualityFloor,
    rest::{BearerToken, Client, ClientConfig, EventMessage, EventStream},
    tuning::RecomputeModel,
};
use kvasir_types::{ModelId, Name, NameError, ObjectKey, ProfileHash};
use pyo3::{buffer::PyBuffer, prelude::*};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::{
    error::Failure, json, model::Model, objects::Objects, profile::Profile, runtime::run, spec::Spec,
};

/// A service, for one credential.
#[pyclass(frozen, module = "kvasir._kvasir")]
pub(crate) struct Store {
    client: Client,
    url: String,
    token: Option<String>,
    namespace: String,
    zone: Option<Name>,
}

pub(crate) fn setting(message: impl std::fmt::Display) -> Failure {
    Failure::input("invalid_setting", message, "correct the setting")
}

/// Creates a store, and verifies the credential with the service.
#[pyfunction]
pub(crate) fn connect<'py>(
    py: Python<'py>,
    url: String,
    token: Option<String>,
    namespace: String,
    zone: Option<String>,
    is_async: bool,
) -> PyResult<Bound<'py, PyAny>> {
    run(py, is_async, async move {
        let address = url.parse().map_err(|error| {
            setting(format!("{url} is not a service address ({error}): use http://host:port"))
        })?;
        let token_header = token.as_deref().map(BearerToken::new).transpose()?;
        // An empty zone says nothing, as where Kubernetes knows none.
        let zone = zone.filter(|zone| !zone.is_empty()).map(|zone| zone.parse()).transpose();
        let zone = zone.map_err(|error: NameError| setting(format!("zone: {error}")))?;
        let client = Client::new(
            address,
            ClientConfig { token: token_header, zone: zone.clone(), ..ClientConfig::default() },
        )?;
        client.usage().await?;
        client.learn_members().await;
        Ok(Store { client, url, token, namespace, zone })
    })
}

fn parse<T: DeserializeOwned>(body: &Value) -> Result<T, Failure> {
    T::deserialize(body)
        .map_err(|error| Failure::input("bad_request", error, "correct what the message names"))
}

fn field<T: DeserializeOwned>(body: &Value, name: &str) -> Result<T, Failure> {
    parse(&body[name])
}

/// One request of the REST API. Bodies are as documented; path parameters are additional fields.
async fn request(client: &Client, name: &str, mut body: Value) -> Result<String, Failure> {
    match name {
        "config" => json(&client.config().await?),
        "usage" => json(&client.usage().await?),
        "explain" => json(&client.explain(&parse(&body)?).await?),
        "contexts" => json(&client.list_contexts(&parse(&body)?).await?),
        "create_context" => json(&client.create_context(&parse(&body)?).await?),
        "context" => json(&client.context(&field(&body, "context_id")?, field(&body, "version")?).await?),
        "change_context" => {
            let context = field(&body, "context_id")?;
            json(&client.change_context(&context, &parse(&body["change"].take())?).await?)
        }
        "delete_context" => json(&client.delete_context(&field(&body, "context_id")?).await?),
        "find_objects" => {
            let keys: Vec<ObjectKey> = field(&body, "keys")?;
            json(&client.lookup_opaque(&field(&body, "namespace")?, &keys).await?)
        }
        "explain_objects" => {
            json(&client.explain_opaque(&field(&body, "namespace")?, field(&body, "keys")?).await?)
        }
        "register_identity" => {
            let (engine, identity): (String, String) = (field(&body, "engine")?, field(&body, "identity")?);
            json(&client.register_identity(&field(&body, "namespace")?, &engine, identity.into()).await?)
        }
        "identity_mismatch" => {
            let (engine, identity): (String, String) = (field(&body, "engine")?, field(&body, "identity")?);
            let namespace = field(&body, "namespace")?;
            json(&client.identity_mismatch(&namespace, &engine, identity.as_bytes()).await?)
        }
        "delete_object" => {
            json(&client.delete_opaque(&field(&body, "namespace")?, &field(&body, "key")?).await?)
        }
        "start_job" => json(&client.start_job(&parse(&body)?).await?),
        "job" => json(&client.job(&field(&body, "job_id")?).await?),
        _ => Err(setting(format!("there is no request {name}"))),
    }
}

#[pymethods]
impl Store {
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    #[getter]
    fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Sends a request with a JSON body, and returns its response as JSON.
    fn request<'py>(
        &self,
        py: Python<'py>,
        name: String,
        body: &str,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let body: Value = serde_json::from_str(body).map_err(setting)?;
        let client = self.client.clone();
        run(py, is_async, async move { request(&client, &name, body).await })
    }

    /// Stores bytes under a key; returns whether they were new. Copies them: the caller may change its own
    /// when this returns.
    fn put_object<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        data: &Bound<'py, PyAny>,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (namespace, key) = self.object_name(key)?;
        let bytes = PyBuffer::<u8>::get(data)?.to_vec(py)?;
        let client = self.client.clone();
        run(py, is_async, async move { Ok(client.put_opaque(&namespace, &key, bytes.into()).await?.created) })
    }

    /// Stores several objects. Returns the codes of refused ones, by key.
    fn put_objects<'py>(
        &self,
        py: Python<'py>,
        objects: Vec<(String, Bound<'py, PyAny>)>,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let namespace: Name = self.namespace.parse().map_err(setting)?;
        let owned = objects.into_iter().map(|(key, data)| {
            let key = ObjectKey::try_from(key).map_err(setting)?;
            Ok((key, PyBuffer::<u8>::get(&data)?.to_vec(py)?.into()))
        });
        let objects = owned.collect::<PyResult<Vec<_>>>()?;
        let client = self.client.clone();
        run(py, is_async, async move {
            let written = client.write_opaque(&namespace, &objects).await?;
            let refused = objects
                .into_iter()
                .zip(written)
                .filter_map(|((key, _), written)| Some((String::from(key), written.problem?.code.as_str())));
            Ok(refused.collect::<std::collections::HashMap<_, _>>())
        })
    }

    /// The bytes under a key.
    fn get_object<'py>(&self, py: Python<'py>, key: &str, is_async: bool) -> PyResult<Bound<'py, PyAny>> {
        let (namespace, key) = self.object_name(key)?;
        let client = self.client.clone();
        run(py, is_async, async move { Ok(client.get_opaque(&namespace, &key).await?) })
    }

    /// The bytes of the leading keys, up to the first that is not stored.
    fn read_objects<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let namespace: Name = self.namespace.parse().map_err(setting)?;
        let keys =
            keys.into_iter().map(ObjectKey::try_from).collect::<Result<Vec<_>, _>>().map_err(setting)?;
        let client = self.client.clone();
        run(py, is_async, async move { Ok(client.read_opaque(&namespace, &keys).await?) })
    }

    /// The namespace's objects, for an engine back end.
    fn objects(&self) -> Result<Objects, Failure> {
        Ok(Objects::new(self.client.clone(), self.namespace.parse().map_err(setting)?))
    }

    fn events<'py>(&self, py: Python<'py>, query: &str, is_async: bool) -> PyResult<Bound<'py, PyAny>> {
        let query: Value = serde_json::from_str(query).map_err(setting)?;
        let client = self.client.clone();
        run(py, is_async, async move {
            let stream = client.events(&parse(&query)?).await?;
            Ok(Events(Arc::new(Mutex::new(stream))))
        })
    }

    /// A stored profile.
    fn profile<'py>(
        &self,
        py: Python<'py>,
        model_id: &str,
        profile_id: &str,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let model: ModelId = model_id.parse().map_err(setting)?;
        let profile: ProfileHash = profile_id.parse().map_err(setting)?;
        let client = self.client.clone();
        run(py, is_async, async move {
            let bytes = client.get_profile(&model, &profile).await?;
            Ok(Profile(Arc::new(kvasir_codec::Profile::from_bytes(&bytes)?)))
        })
    }

    /// Registers a model and opens the namespace. Without a profile, it is chosen automatically; without a
    /// quality, loads bring whatever the deadline allows.
    #[expect(clippy::too_many_arguments, reason = "keywords of one Python function")]
    #[pyo3(signature = (spec, profile, chunk_tokens, prefill_tokens_per_s, quality, is_async))]
    fn model<'py>(
        &self,
        py: Python<'py>,
        spec: &Spec,
        profile: Option<&Profile>,
        chunk_tokens: Option<usize>,
        prefill_tokens_per_s: Option<f64>,
        quality: Option<&str>,
        is_async: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let rest = ClientConfig { zone: self.zone.clone(), ..ClientConfig::default() };
        let builder = Kvasir::builder(self.url.as_str()).rest(rest);
        let mut builder = builder.model(Arc::clone(&spec.0)).namespace(self.namespace.as_str());
        if let Some(profile) = profile {
            builder = builder.profile(Arc::clone(&profile.0));
        }
        if let Some(speed) = prefill_tokens_per_s {
            if !(speed.is_finite() && speed > 0.0) {
                return Err(setting("prefill_tokens_per_s must be above 0").into());
            }
            builder = builder.recompute_model(RecomputeModel::from_seconds(0.0, 1.0 / speed, 0.0));
        }
        builder = builder.quality(match quality {
            Some(quality) => QualityFloor::Named(quality.parse().map_err(setting)?),
            None => QualityFloor::Adaptive,
        });
        if let Some(token) = &self.token {
            builder = builder.token(token.as_str());
        }
        if let Some(tokens) = chunk_tokens {
            builder = builder.chunk_tokens(tokens);
        }
        run(py, is_async, async move {
            let kvasir = builder.connect().await?;
            // A process may end before the lookup that triggers their background fetch.
            kvasir.preload_profiles().await?;
            Ok(Model::new(kvasir))
        })
    }
}

impl Store {
    fn object_name(&self, key: &str) -> Result<(Name, ObjectKey), Failure> {
        Ok((self.namespace.parse().map_err(setting)?, key.parse().map_err(setting)?))
    }
}

/// An open event stream.
#[pyclass(frozen, module = "kvasir._kvasir")]
pub(crate) struct Events(Arc<Mutex<EventStream>>);

#[pymethods]
impl Events {
    /// The next event as JSON; `None` if the service ended the stream.
    fn next<'py>(&self, py: Python<'py>, is_async: bool) -> PyResult<Bound<'py, PyAny>> {
        let stream = Arc::clone(&self.0);
        run(py, is_async, async move {
            Ok(match stream.lock().await.next().await? {
                Some(EventMessage::Event(event)) => Some(json(&event)?),
                Some(EventMessage::Dropped(dropped)) => Some(json(&dropped)?),
                None => None,
            })
        })
    }
}
