//! What the server answers to each request.
//!
//! | request | answer |
//! |---|---|
//! | `POST /embed` with `{"texts": ["one", "another"]}` | 200 and `{"embeddings": [[…], […]]}`, one list of numbers for each text, in the same order |
//! | `GET /metrics` | 200 and the counters |
//! | `GET /health` | 200 and `{"status": "ok"}`; 503 if the engine failed to compute the last batch |
//!
//! Everything else is refused, with `{"error": "…"}`, which says what to do: 400 for a body that is empty, not UTF-8 or not JSON; 422 for other JSON
//! and for more texts than the server takes at once; 413 for a body that is too long; 408 for one that takes too long to arrive; 404; 405; 503,
//! with `Retry-After`, if the queue is full; 500 if the engine has failed.
//!
//! Bodies are parsed and cut into tokens on threads for blocking work, so that a long text does not hold up other connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, EXPECT, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::error::Category;
use tokio::sync::oneshot;

use crate::metrics::{self, Metrics};
use crate::queue::{Embedded, Queue};
use crate::tokens::Tokens;

/// What a server needs to answer. Several connections use it at a time.
pub struct Service {
    /// Cuts texts into tokens.
    pub tokens: Tokens,
    /// Takes texts to the engine.
    pub queue: Queue,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The most texts of a request. More than the queue has room for could never be answered.
    pub most_texts: usize,
    /// The most bytes of a body.
    pub most_bytes: usize,
    /// The most time that a body may take to arrive.
    pub body_time: Duration,
}

/// Bytes of a body past the limit that are read and dropped, so that the client, which reads the answer only after it has written its body, gets
/// to know why it is refused. Past these the connection is closed.
const DROPPED_BYTES: u64 = 64 << 20;

/// Seconds after which a client may try again if the queue is full. Short texts leave the queue sooner, long ones later.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// The most bytes of a text. The model uses at most 256 tokens of it, and the tokenizer keeps some hundred bytes for each byte of the whole text.
const MOST_TEXT_BYTES: usize = 64 << 10;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

#[derive(Deserialize)]
struct Texts {
    texts: Vec<String>,
}

#[derive(Serialize)]
struct Embeddings {
    embeddings: Vec<Vec<f32>>,
}

#[derive(Serialize)]
struct Problem<'a> {
    error: &'a str,
}

/// Why a request is not answered.
struct Refusal {
    status: StatusCode,
    error: String,
    /// Whether bytes of the request may be left, so that the connection cannot be used again.
    close: bool,
    /// Whether the same request may be answered later.
    retry: bool,
}

impl Refusal {
    fn new(status: StatusCode, error: impl Into<String>) -> Refusal {
        Refusal { status, error: error.into(), close: false, retry: false }
    }
}

impl From<Refusal> for Response<Full<Bytes>> {
    fn from(refusal: Refusal) -> Self {
        let body = serde_json::to_string(&Problem { error: &refusal.error }).expect("a text is JSON");
        let mut response = respond(refusal.status, JSON, body);
        if refusal.retry {
            response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        if refusal.close {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

fn respond(status: StatusCode, kind: HeaderValue, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

impl Service {
    /// The answer to a request.
    pub(crate) async fn answer(self: Arc<Service>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let begin = Instant::now();
        let response = match (request.method(), request.uri().path()) {
            (&Method::POST, "/embed") => {
                let response = self.embed(request).await.unwrap_or_else(Response::from);
                self.metrics.embed_took(begin.elapsed());
                response
            }
            (&Method::GET | &Method::HEAD, "/metrics") => {
                let text = self.metrics.text(self.queue.waiting());
                respond(StatusCode::OK, HeaderValue::from_static(metrics::CONTENT_TYPE), text)
            }
            (&Method::GET | &Method::HEAD, "/health") => self.health(),
            (_, "/embed") => other_method("POST"),
            (_, "/metrics" | "/health") => other_method("GET, HEAD"),
            (_, path) => {
                let error = format!("there is no {path}: POST /embed, GET /metrics and GET /health are there");
                Refusal::new(StatusCode::NOT_FOUND, error).into()
            }
        };
        self.metrics.answered(response.status().as_u16());
        response
    }

    fn health(&self) -> Response<Full<Bytes>> {
        if self.queue.is_failing() {
            let error = "the engine has failed to compute a batch; its log says why";
            return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error).into();
        }
        respond(StatusCode::OK, JSON, String::from("{\"status\": \"ok\"}"))
    }

    async fn embed(self: &Arc<Service>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Refusal> {
        let body = self.body(request).await?;
        let service = self.clone();
        let queued = tokio::task::spawn_blocking(move || service.queue(&body)).await;
        let engine_failed = |error: String| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error);
        let receivers = queued.map_err(|error| engine_failed(format!("the texts were not read: {error}")))??;
        let mut embeddings = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            let embedded = receiver.await.map_err(|_| engine_failed(String::from("the engine has ended")))?;
            embeddings.push(embedded.map_err(engine_failed)?);
        }
        let body = serde_json::to_string(&Embeddings { embeddings });
        let body = body.map_err(|error| engine_failed(format!("the embeddings cannot be written as JSON: {error}")))?;
        Ok(respond(StatusCode::OK, JSON, body))
    }

    /// The body of a request, within the limits.
    async fn body(&self, request: Request<Incoming>) -> Result<Vec<u8>, Refusal> {
        let most = self.most_bytes;
        let too_long = |close| Refusal {
            status: StatusCode::PAYLOAD_TOO_LARGE,
            error: format!("the body is longer than {most} bytes: send fewer or shorter texts in a request"),
            close,
            retry: false,
        };
        // Such a client asks before it sends its body.
        if request.headers().contains_key(EXPECT) && request.body().size_hint().lower() > most as u64 {
            return Err(too_long(true));
        }
        let read = async {
            let (mut body, mut bytes, mut arrived) = (request.into_body(), Vec::new(), 0u64);
            while let Some(frame) = body.frame().await {
                let cut = |error: hyper::Error| Refusal {
                    status: StatusCode::BAD_REQUEST,
                    error: format!("the body did not arrive: {error}"),
                    close: true,
                    retry: false,
                };
                let Ok(data) = frame.map_err(cut)?.into_data() else { continue };
                arrived += data.len() as u64;
                if arrived <= most as u64 {
                    bytes.extend_from_slice(&data);
                } else if arrived > DROPPED_BYTES {
                    return Err(too_long(true));
                }
            }
            if arrived > most as u64 { Err(too_long(false)) } else { Ok(bytes) }
        };
        tokio::time::timeout(self.body_time, read).await.unwrap_or_else(|_| {
            let error = format!("the body did not arrive within {} s", self.body_time.as_secs_f64());
            Err(Refusal { status: StatusCode::REQUEST_TIMEOUT, error, close: true, retry: false })
        })
    }

    /// Queues the texts of a body. Blocks while they are cut into tokens.
    fn queue(&self, body: &[u8]) -> Result<Vec<oneshot::Receiver<Embedded>>, Refusal> {
        let texts = texts_of(body)?;
        if texts.len() > self.most_texts {
            let error = format!("{} texts are more than the {} of a request: send fewer", texts.len(), self.most_texts);
            return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error));
        }
        if let Some(number) = texts.iter().position(|text| text.len() > MOST_TEXT_BYTES) {
            let bytes = texts[number].len();
            let error =
                format!("text {number} has {bytes} bytes, and {MOST_TEXT_BYTES} are the most: send its beginning");
            return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error));
        }
        // Reserved first: a request that is refused costs no tokens.
        let Some(room) = self.queue.reserve(texts.len()) else {
            let (waiting, length) = (self.queue.waiting(), self.queue.length());
            let error = format!("the queue is full, {waiting} of at most {length} texts wait: try again later");
            return Err(Refusal { retry: true, ..Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error) });
        };
        let tokens = texts.iter().enumerate().map(|(number, text)| self.tokens.of(number, text));
        let tokens = tokens.collect::<Result<Vec<_>, _>>();
        let tokens = tokens.map_err(|error| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
        Ok(self.queue.push(room, tokens))
    }
}

/// The texts of a body.
fn texts_of(body: &[u8]) -> Result<Vec<String>, Refusal> {
    const FORM: &str = "The body is an object with an array of texts, such as {\"texts\": [\"one text\", \"another\"]}";
    let refuse = |status, reason: String| Refusal::new(status, format!("{reason}. {FORM}"));
    let bad = |reason| refuse(StatusCode::BAD_REQUEST, reason);
    let text = std::str::from_utf8(body).map_err(|error| bad(format!("byte {} is not UTF-8", error.valid_up_to())))?;
    if text.trim().is_empty() {
        return Err(bad(String::from("the body is empty")));
    }
    let texts: Texts = serde_json::from_str(text).map_err(|error| match error.classify() {
        Category::Data => refuse(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
        Category::Syntax | Category::Eof | Category::Io => bad(error.to_string()),
    })?;
    Ok(texts.texts)
}

fn other_method(methods: &'static str) -> Response<Full<Bytes>> {
    let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, format!("the methods here are {methods}"));
    let mut response = Response::from(refusal);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}
