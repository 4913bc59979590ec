//! The counters of a server, in the text format that Prometheus reads.

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// The content type of [`Metrics::text`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of the histogram of batch sizes: up to the largest that the command accepts.
const BATCH_SIZES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// Upper bounds of the histogram of times, in seconds: from one short text on a GPU to a full queue on a CPU.
const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// The counters. Several threads may count at a time.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<[(&'static str, String); 1], Counter>,
    seconds: Histogram,
    texts: Counter,
    abandoned: Counter,
    batch_sizes: Histogram,
    failed_batches: Counter,
    queue: Gauge,
    connections: Gauge,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("minilm"),
            requests: Family::default(),
            seconds: Histogram::new(SECONDS),
            texts: Counter::default(),
            abandoned: Counter::default(),
            batch_sizes: Histogram::new(BATCH_SIZES),
            failed_batches: Counter::default(),
            queue: Gauge::default(),
            connections: Gauge::default(),
        };
        let to = &mut metrics.registry;
        to.register("requests", "Answered requests, by HTTP status", metrics.requests.clone());
        to.register_with_unit(
            "embed_request",
            "Time from the head of a request for embeddings to its answer",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        to.register("texts", "Texts whose embeddings were computed", metrics.texts.clone());
        to.register(
            "texts_abandoned",
            "Texts that were not computed: their client was gone",
            metrics.abandoned.clone(),
        );
        to.register("batch_texts", "Texts of a batch; its count is that of batches", metrics.batch_sizes.clone());
        to.register("batches_failed", "Batches that the engine failed to compute", metrics.failed_batches.clone());
        to.register("queue_texts", "Texts that wait for the engine", metrics.queue.clone());
        to.register("connections", "Open connections", metrics.connections.clone());
        metrics
    }
}

impl Metrics {
    /// A request was answered with this status.
    pub(crate) fn answered(&self, status: u16) {
        self.requests.get_or_create(&[("status", status.to_string())]).inc();
    }

    /// A request for embeddings was answered after this time.
    pub(crate) fn embed_took(&self, time: Duration) {
        self.seconds.observe(time.as_secs_f64());
    }

    /// A batch of `texts` was computed, or has failed.
    pub(crate) fn batch(&self, texts: usize, failed: bool) {
        self.batch_sizes.observe(texts as f64);
        if failed {
            self.failed_batches.inc();
        } else {
            self.texts.inc_by(texts as u64);
        }
    }

    /// A text was taken from the queue that no client waits for.
    pub(crate) fn abandoned(&self) {
        self.abandoned.inc();
    }

    /// A connection was opened.
    pub(crate) fn connected(&self) {
        self.connections.inc();
    }

    /// A connection was closed.
    pub(crate) fn disconnected(&self) {
        self.connections.dec();
    }

    /// All counters, while `waiting` texts wait for the engine.
    pub(crate) fn text(&self, waiting: usize) -> String {
        self.queue.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a String takes all that is written to it");
        text
    }
}
