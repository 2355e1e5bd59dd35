//! The engine over HTTP, as OpenAI's completions API has it: ordinary clients and load generators drive it.
//!
//! | route | what |
//! |---|---|
//! | `POST /v1/completions` | whole or as server-sent events; one prompt, text or token ids |
//! | `GET /v1/models` | the one model that is served |
//! | `GET /health` | 200 while the process lives |
//!
//! Besides OpenAI's fields a request may say `ignore_eos`, `top_k` and `kvasir: {"kv_digest": true}`; a response ends with
//! `kvasir`: where the prompt's KV came from and where the time to the first token went. What cannot be done is refused by
//! name, never ignored.

mod error;
mod request;
mod response;
mod text;

use std::{convert::Infallible, sync::Arc};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    response::{
        IntoResponse, Response, Sse,
        sse::{self, KeepAlive},
    },
    routing::{get, post},
};
use futures::{Stream, stream};
use tokio::net::TcpListener;

pub use error::{ApiError, ErrorBody};
pub use request::{CompletionRequest, Extensions, Prompt, Stop, StreamOptions};
pub use response::{Choice, CompletionResponse, KvasirReport, Usage};

use self::{response::Reply, text::Detokenizer};
use crate::{
    limits::REQUEST_BYTES_MAX,
    serving::{Completion, Engine, Output, Summary},
};

/// State that the handlers share.
#[derive(Debug, Clone)]
struct Served {
    engine: Engine,
    /// The model's name in requests and responses.
    name: Arc<str>,
}

/// The routes, under the model name `name`.
pub fn router(engine: Engine, name: &str) -> Router {
    Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/health", get(|| async { "ok" }))
        .fallback(|| async { ApiError::route() })
        .method_not_allowed_fallback(|| async { ApiError::method() })
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(Served { engine, name: name.into() })
}

/// Serves until `shutdown`, then lets running requests end and waits for stores that have started.
///
/// # Errors
/// Those of the listener.
pub async fn serve(
    engine: Engine,
    name: &str,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(engine.clone(), name)).with_graceful_shutdown(shutdown).await?;
    engine.drain().await;
    Ok(())
}

async fn models(State(served): State<Served>) -> Json<serde_json::Value> {
    let model = serde_json::json!({
        "id": &*served.name, "object": "model", "owned_by": "kvasir",
        "max_model_len": served.engine.model().config().context,
    });
    Json(serde_json::json!({ "object": "list", "data": [model] }))
}

async fn completions(
    State(served): State<Served>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = body.map_err(|rejection| ApiError::body_rejected(&rejection))?;
    let request = CompletionRequest::parse(&body, &served.name)?;
    let asked = request.narrow(served.engine.model())?;
    let prompt_tokens = asked.request.prompt.len();
    let completion = served.engine.complete(asked.request, asked.digest)?;
    let reply = Reply::new(&served.name, prompt_tokens);
    let decoder = Detokenizer::new(Arc::clone(served.engine.model()), asked.stops);
    if request.stream {
        let events = events(completion, decoder, reply, request.wants_usage());
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    whole(completion, decoder, reply).await.map(IntoResponse::into_response)
}

async fn whole(
    mut completion: Completion,
    mut decoder: Detokenizer,
    reply: Reply,
) -> Result<Json<CompletionResponse>, ApiError> {
    let mut text = String::new();
    while let Some(output) = completion.next().await {
        match output {
            Output::Token(token) => text += &decoder.push(token)?,
            Output::Done(summary) => {
                text += &decoder.finish()?;
                return Ok(Json(reply.whole(text, &decoder, &summary)));
            }
        }
        if decoder.stopped() {
            let summary = completion.stop().await.ok_or_else(ApiError::engine)?;
            return Ok(Json(reply.whole(text, &decoder, &summary)));
        }
    }
    Err(ApiError::engine())
}

/// What a stream has yet to send.
enum Stage {
    Text,
    Usage(Box<Summary>),
    End,
    Over,
}

/// One event per piece of text, then one with usage if the client requested it, then `[DONE]`.
fn events(
    completion: Completion,
    decoder: Detokenizer,
    reply: Reply,
    usage: bool,
) -> impl Stream<Item = Result<sse::Event, Infallible>> + Send {
    let state = (completion, decoder, reply, Stage::Text);
    stream::unfold(state, move |(mut completion, mut decoder, reply, stage)| async move {
        let (event, next) = match stage {
            Stage::Text => text_event(&mut completion, &mut decoder, &reply, usage).await,
            Stage::Usage(summary) => (json(&reply.usage(&decoder, &summary)), Stage::End),
            Stage::End => (sse::Event::default().data("[DONE]"), Stage::Over),
            Stage::Over => return None,
        };
        Some((Ok(event), (completion, decoder, reply, next)))
    })
}

async fn text_event(
    completion: &mut Completion,
    decoder: &mut Detokenizer,
    reply: &Reply,
    usage: bool,
) -> (sse::Event, Stage) {
    let after = |summary| if usage { Stage::Usage(Box::new(summary)) } else { Stage::End };
    loop {
        let step = match completion.next().await {
            Some(Output::Token(token)) => {
                decoder.push(token).map(|text| (text, None)).map_err(ApiError::from)
            }
            Some(Output::Done(summary)) => {
                decoder.finish().map(|text| (text, Some(summary))).map_err(ApiError::from)
            }
            None => Err(ApiError::engine()),
        };
        match step {
            Ok((text, Some(summary))) => {
                return (json(&reply.last(text, decoder, &summary)), after(*summary));
            }
            Ok((text, None)) if decoder.stopped() => {
                let Some(summary) = completion.stop().await else {
                    return (json(ApiError::engine().body()), Stage::End);
                };
                return (json(&reply.last(text, decoder, &summary)), after(summary));
            }
            // Part of a character, or the possible start of a stop sequence: nothing to show yet.
            Ok((text, None)) if text.is_empty() => {}
            Ok((text, None)) => return (json(&reply.piece(text)), Stage::Text),
            Err(error) => return (json(error.body()), Stage::End),
        }
    }
}

/// An event with a JSON document in it.
fn json(document: &impl serde::Serialize) -> sse::Event {
    // Plain structs of numbers and strings always serialise.
    sse::Event::default().data(serde_json::to_string(document).unwrap_or_default())
}

#[cfg(test)]
mod tests;
