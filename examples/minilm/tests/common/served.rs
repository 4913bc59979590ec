//! A server in the process of a test, the small model that it serves, and a gate that holds the thread of its engine.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use streamvm::{DeviceId, Vm};
use streamvm_minilm::bert::Bert;
use streamvm_minilm::embed::embed_together;
use streamvm_minilm::error::Error;
use streamvm_minilm::layers::Placement;
use streamvm_minilm::metrics::Metrics;
use streamvm_minilm::queue::{compute, queue};
use streamvm_minilm::requests::Service;
use streamvm_minilm::server::{Limits, serve};
use streamvm_minilm::tokens::Tokens;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::drawn::Drawn;
use super::folder::{tokens_of, write_model};
use super::http::{Answer, embed, metric};

/// A function that computes the embeddings of a batch.
pub(crate) type Embed = Box<dyn FnMut(&[&[u32]]) -> Result<Vec<f32>, Error> + Send>;

/// The files of the model, and its weights.
pub(crate) struct Model {
    pub(crate) folder: TempDir,
    drawn: Drawn,
}

impl Model {
    pub(crate) fn new() -> Model {
        let folder = tempfile::tempdir().expect("a folder");
        Model { drawn: write_model(folder.path()), folder }
    }

    /// A function that computes the embeddings of a batch by this model.
    pub(crate) fn embed(&self) -> Embed {
        let vm = Vm::builder().build().expect("an engine");
        let compiled = Placement::Compiled { texts: 32, tokens: 16 };
        let bert = Bert::read(&vm, DeviceId::cpu(0), compiled, self.folder.path()).expect("the model");
        Box::new(move |texts| embed_together(&vm, &bert, texts))
    }

    /// Fails if an answer is not the embeddings of these texts, within 1e-5 of naive ones.
    pub(crate) fn check(&self, texts: &[&str], answer: &Answer) {
        let found = answer.embeddings();
        assert_eq!(found.len(), texts.len());
        for (text, found) in texts.iter().zip(found) {
            let expected = self.drawn.embedding(&tokens_of(text));
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                let off = (f64::from(*found) - expected).abs();
                assert!(off <= 1e-5, "{text}: {off:e} off");
            }
        }
    }
}

/// Holds the thread that computes at the begin of each batch, until it is opened.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<(bool, usize)>, Condvar)>);

impl Gate {
    /// Before each batch, waits until the gate is open.
    pub(crate) fn before(&self, mut embed: Embed) -> Embed {
        let gate = self.clone();
        Box::new(move |texts| {
            let (state, changed) = &*gate.0;
            let mut state = state.lock().expect("no panic");
            state.1 += 1;
            changed.notify_all();
            drop(changed.wait_while(state, |(open, _)| !*open).expect("no panic"));
            embed(texts)
        })
    }

    /// Returns once this many batches have come to the gate.
    pub(crate) fn wait_for(&self, batches: usize) {
        let (state, changed) = &*self.0;
        drop(changed.wait_while(state.lock().expect("no panic"), |(_, came)| *came < batches).expect("no panic"));
    }

    pub(crate) fn open(&self) {
        self.0.0.lock().expect("no panic").0 = true;
        self.0.1.notify_all();
    }
}

/// Options that a test sets. By default the server computes texts at once, four together at most.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) queue: usize,
    pub(crate) batch: usize,
    pub(crate) wait: Duration,
    pub(crate) unhealthy: Duration,
    pub(crate) body_time: Duration,
    pub(crate) limits: Limits,
}

impl Default for Options {
    fn default() -> Options {
        let (wait, body_time) = (Duration::ZERO, Duration::from_secs(60));
        Options { queue: 64, batch: 4, wait, unhealthy: Duration::from_secs(600), body_time, limits: Limits::default() }
    }
}

/// A server in this process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: UnboundedSender<()>,
    pub(crate) served: JoinHandle<usize>,
    pub(crate) engine: JoinHandle<()>,
}

impl Server {
    pub(crate) fn start(
        model: &Model,
        options: Options,
        embed: impl FnMut(&[&[u32]]) -> Result<Vec<f32>, Error> + Send + 'static,
    ) -> Server {
        let Options { queue: length, batch, wait, unhealthy, body_time, limits } = options;
        let metrics = Arc::new(Metrics::default());
        let (queue, texts) = queue(length, unhealthy);
        let tokens = Tokens::read(model.folder.path()).expect("a tokenizer");
        let most_texts = length.min(16);
        let service = Service { tokens, queue, metrics: metrics.clone(), most_texts, most_bytes: 1 << 20, body_time };
        let (stop, stops) = unbounded_channel();
        let (send, receive) = std::sync::mpsc::channel();
        let engine = thread::spawn(move || compute(&texts, (batch, wait), &metrics, embed));
        let served = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                send.send(listener.local_addr().expect("an address")).expect("sent");
                serve(listener, Arc::new(service), limits, stops).await
            })
        });
        Server { address: receive.recv().expect("an address"), stop, served, engine }
    }

    /// Begins to drain, or ends the server if it drains already.
    pub(crate) fn stop(&self) {
        self.stop.send(()).expect("the server runs");
    }

    /// The number of connections that were not over, once the server has ended.
    pub(crate) fn end(self) -> usize {
        let left = self.served.join().expect("no panic");
        self.engine.join().expect("no panic");
        left
    }

    /// Asks on a connection and a thread of its own.
    pub(crate) fn ask(&self, texts: &'static [&'static str]) -> JoinHandle<Answer> {
        let address = self.address;
        thread::spawn(move || embed(address, texts))
    }

    /// Waits until a counter has this value.
    pub(crate) fn wait_for(&self, name: &str, value: f64) {
        let begin = Instant::now();
        while metric(self.address, name) != value {
            let found = metric(self.address, name);
            assert!(begin.elapsed() < Duration::from_secs(60), "{name} is {found}, not {value}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        metric(self.address, name)
    }
}
