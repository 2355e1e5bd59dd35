use std::sync::LazyLock;

use axum::{body::Body, http};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::{
    Model, Sampling,
    serving::{EngineConfig, SchedulerLimits},
};

static MODEL: LazyLock<Arc<Model>> =
    LazyLock::new(|| Arc::new(Model::kvasir_tiny().expect("embedded model")));

/// A server on a free port; plain HTTP/1.1 by hand, as the strangest client would.
struct Server(std::net::SocketAddr);

impl Server {
    async fn start(limits: SchedulerLimits) -> Self {
        let config = EngineConfig { limits, ..EngineConfig::for_contexts(&MODEL, 2) };
        let engine = Engine::start(Arc::clone(&MODEL), config, None).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(engine, "tiny", listener, std::future::pending()));
        Self(address)
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut connection = tokio::net::TcpStream::connect(self.0).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        // A server that refuses a body may close before all of it is sent.
        let _ = connection.write_all(body.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        (answer.get(9..12).unwrap().parse().unwrap(), answer)
    }

    async fn complete(&self, body: Value) -> (u16, Value) {
        let (status, answer) = self.send("POST", "/v1/completions", &body.to_string()).await;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        (status, serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}")))
    }

    /// Data of the events of a stream, chunked encoding taken off by looking for lines.
    async fn events(&self, body: Value) -> Vec<String> {
        let (status, answer) = self.send("POST", "/v1/completions", &body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
        answer.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }
}

fn alone(prompt: &str, count: usize) -> String {
    let prompt = MODEL.tokenizer().encode(prompt).unwrap();
    let mut kv = MODEL.new_kv().unwrap();
    let tokens = MODEL.generate_with_kv(&mut kv, &prompt, count, &Sampling::Greedy).unwrap();
    MODEL.tokenizer().decode(&tokens).unwrap()
}

const PROMPT: &str = "It was a bright cold morning in the harbour, and the old man";

#[tokio::test]
async fn a_completion_is_the_models_text_whole_or_streamed() {
    let server = Server::start(SchedulerLimits::default()).await;
    let expected = alone(PROMPT, 20);
    let asked = json!({ "model": "tiny", "prompt": PROMPT, "max_tokens": 20, "temperature": 0 });
    let (status, answer) = server.complete(asked.clone()).await;
    assert_eq!((status, answer["choices"][0]["text"].as_str()), (200, Some(expected.as_str())));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 20);
    let ttft = &answer["kvasir"]["ttft"];
    let part = |name: &str| ttft[name].as_f64().unwrap();
    let parts = ["lookup_ms", "queue_ms", "fetch_ms", "decode_ms", "recompute_ms", "first_step_ms"];
    let sum: f64 = parts.iter().map(|name| part(name)).sum();
    assert!(part("first_step_ms") > 0.0 && (sum - part("total_ms")).abs() < 1e-6, "{ttft}");

    let mut streamed = asked;
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({ "include_usage": true });
    let events = server.events(streamed).await;
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let documents: Vec<Value> =
        events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    let text: String = documents.iter().filter_map(|d| d["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, expected);
    assert!(documents.len() > 5, "text comes in pieces: {events:?}");
    let last = documents.last().unwrap();
    assert_eq!((&last["usage"]["completion_tokens"], &last["choices"]), (&json!(20), &json!([])));
    assert!(
        last["kvasir"]["prefix"]["memory_tokens"].as_u64() >= Some(16),
        "the first answer's pages serve: {last}"
    );
}

#[tokio::test]
async fn stop_sequences_end_an_answer_before_them() {
    let server = Server::start(SchedulerLimits::default()).await;
    let text = alone(PROMPT, 30);
    let words: Vec<&str> = text.split_inclusive(' ').collect();
    let stop = words[words.len() / 2..].concat().chars().take(7).collect::<String>();
    let until = &text[..text.find(&stop).unwrap()];
    for stream in [false, true] {
        let asked = json!({
            "prompt": MODEL.tokenizer().encode(PROMPT).unwrap(), "max_tokens": 30, "temperature": 0,
            "stop": [stop, "never in it"], "stream": stream,
        });
        let (found, last) = if stream {
            let events = server.events(asked).await;
            let mut documents: Vec<Value> =
                events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
            let text = documents.iter().filter_map(|d| d["choices"][0]["text"].as_str()).collect::<String>();
            (text, documents.pop().unwrap())
        } else {
            let answer = server.complete(asked).await.1;
            (answer["choices"][0]["text"].as_str().unwrap().to_owned(), answer)
        };
        let reason = &last["choices"][0]["finish_reason"];
        assert_eq!((found.as_str(), reason), (until, &json!("stop")));
        // It is accounted for like a request that ran to its end, and what it computed is kept.
        let kvasir = &last["kvasir"];
        assert!(kvasir["ttft"]["total_ms"].as_f64() > Some(0.0), "{last}");
        let held = kvasir["prefix"]["memory_tokens"].as_u64();
        assert!(if stream { held >= Some(16) } else { held == Some(0) }, "{last}");
    }
}

#[tokio::test]
async fn what_is_not_served_is_refused_by_name() {
    let server = Server::start(SchedulerLimits::default()).await;
    let cases = [
        (json!({ "prompt": "a", "model": "gpt" }), 404, "not served here"),
        (json!({ "prompt": ["a", "b"] }), 400, "one prompt"),
        (json!({ "prompt": "" }), 400, "at least one prompt token"),
        (json!({ "prompt": [70000] }), 400, "outside the vocabulary"),
        (json!({ "prompt": vec![5; 2000] }), 400, "context"),
        (json!({ "prompt": "a", "max_tokens": 0 }), 400, "max_tokens"),
        (json!({ "prompt": "a", "n": 2 }), 400, "does not do n"),
        (json!({ "prompt": "a", "top_p": 0.5 }), 400, "top_p"),
        (json!({ "prompt": "a", "temperature": -1 }), 400, "temperature"),
        (json!({ "prompt": "a", "top_k": 0 }), 400, "top_k"),
        (json!({ "prompt": "a", "logprobs": 1 }), 400, "logprobs"),
        (json!({ "prompt": "a", "stop": "" }), 400, "stop"),
        (json!({ "prompt": "a", "kvasir": { "x": 1 } }), 400, "unknown field"),
        (json!({ "prompt": 3 }), 400, "not a valid completion request"),
        (json!([]), 400, "not a valid completion request"),
    ];
    for (body, status, needle) in cases {
        let (found, answer) = server.complete(body.clone()).await;
        let message = answer["error"].to_string();
        assert!(found == status && message.contains(needle), "{body}: {found} {answer}");
    }
    let (status, _) = server.send("POST", "/v1/completions", &" ".repeat(REQUEST_BYTES_MAX + 1)).await;
    assert_eq!(status, 413);
    assert_eq!(server.send("GET", "/v1/completions", "").await.0, 405);
    assert_eq!(server.send("GET", "/nowhere", "").await.0, 404);
    let (status, models) = server.send("GET", "/v1/models", "").await;
    assert!(
        status == 200 && models.contains("\"tiny\"") && models.contains("\"max_model_len\":1024"),
        "{models}"
    );
    assert_eq!(server.send("GET", "/health", "").await.0, 200);
}

#[tokio::test]
async fn the_queue_is_bounded_and_a_client_that_leaves_gives_its_place_back() {
    let limits = SchedulerLimits { sequences: 1, waiting: 1, ..SchedulerLimits::default() };
    let config = EngineConfig { limits, ..EngineConfig::for_contexts(&MODEL, 2) };
    let engine = Engine::start(Arc::clone(&MODEL), config, None).unwrap();
    let router = router(engine.clone(), "tiny");
    let ask = |count: usize| {
        let body = json!({ "prompt": PROMPT, "max_tokens": count, "stream": true }).to_string();
        let request = http::Request::post("/v1/completions").body(Body::from(body)).unwrap();
        let router = router.clone();
        async move { tower::ServiceExt::oneshot(router, request).await.unwrap() }
    };
    let (first, second) = (ask(900).await, ask(900).await);
    assert_eq!(
        (first.status(), second.status(), engine.open()),
        (http::StatusCode::OK, http::StatusCode::OK, 2)
    );
    let third = ask(1).await;
    assert_eq!(third.status(), http::StatusCode::TOO_MANY_REQUESTS);
    assert!(third.headers().contains_key(http::header::RETRY_AFTER));
    drop((first, second));
    while engine.open() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(1).await.status(), http::StatusCode::OK);
}

#[test]
fn text_comes_in_whole_characters() {
    let text = "é – 漢字 🦀 done";
    let tokens = MODEL.tokenizer().encode(text).unwrap();
    let mut decoder = Detokenizer::new(Arc::clone(&MODEL), Vec::new());
    let mut pieces: Vec<String> = tokens.iter().map(|token| decoder.push(*token).unwrap()).collect();
    pieces.push(decoder.finish().unwrap());
    assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
    assert_eq!(pieces.concat(), MODEL.tokenizer().decode(&tokens).unwrap());
    // An answer that ends within a character says so.
    let mut decoder = Detokenizer::new(Arc::clone(&MODEL), Vec::new());
    let crab = MODEL.tokenizer().encode("🦀").unwrap();
    assert_eq!(
        decoder.push(crab[0]).unwrap() + &decoder.finish().unwrap(),
        MODEL.tokenizer().decode(&crab[..1]).unwrap()
    );
}
