//! `minilm serve`: embeddings over HTTP.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use streamvm_minilm::embed::embed_together;
use streamvm_minilm::error::Error;
use streamvm_minilm::metrics::Metrics;
use streamvm_minilm::queue::{compute, queue};
use streamvm_minilm::requests::Service;
use streamvm_minilm::server::{Limits, serve};
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::command::{Model, ModelArguments, say};

/// The most texts of a request: as many as the largest batch has.
const MOST_TEXTS: usize = 256;

/// The most bytes of a body: 4 KiB for each of the most texts, of which the model uses at most 256 tokens.
const MOST_BYTES: usize = 1 << 20;

/// The most time that a body may take to arrive: 1 MiB at about 1 Mbit/s.
const BODY_TIME: Duration = Duration::from_secs(10);

/// How long `/health` tells of a batch that failed.
const UNHEALTHY: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Serve {
    /// The address to listen at. With port 0 the system chooses a port, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// How many texts may wait for the engine. A request that finds no room is answered by 503
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    queue: u32,
    /// How many milliseconds a text may wait for others that are computed together with it
    #[arg(long, value_name = "MS", default_value = "2", value_parser = clap::value_parser!(u32).range(..=60_000))]
    wait: u32,
    #[command(flatten)]
    model: ModelArguments,
}

impl Serve {
    pub(crate) fn run(&self) -> Result<(), Error> {
        let Model { tokens, bert, vm } = self.model.read()?;
        let metrics = Arc::new(Metrics::default());
        let (queue, texts) = queue(self.queue as usize, UNHEALTHY);
        let most_texts = MOST_TEXTS.min(queue.length());
        let service = Service {
            tokens,
            queue,
            metrics: metrics.clone(),
            most_texts,
            most_bytes: MOST_BYTES,
            body_time: BODY_TIME,
        };
        let (stop, stops) = unbounded_channel();
        let ended = stop.clone();
        let bounds = (self.model.batch.into(), Duration::from_millis(self.wait.into()));
        let engine = thread::Builder::new().name(String::from("minilm-engine")).spawn(move || {
            let _ended = OnEnd(ended);
            compute(&texts, bounds, &metrics, |texts| embed_together(&vm, &bert, texts));
        });
        let engine = engine.map_err(Error::Start)?;
        // Threads that cut texts into tokens. More would take memory and the time of the engine.
        let cutters = thread::available_parallelism().map_or(1, NonZero::get);
        let runtime = runtime::Builder::new_current_thread().enable_all().max_blocking_threads(cutters).build();
        let runtime = runtime.map_err(Error::Start)?;
        let served: Result<usize, Error> = runtime.block_on(async {
            forward_signals(stop).map_err(Error::Start)?;
            let refuse = |source| Error::Listen { address: self.listen, source };
            let listener = TcpListener::bind(self.listen).await.map_err(refuse)?;
            let address = listener.local_addr().map_err(refuse)?;
            // A reader that is gone is no reason to stop.
            let mut out = io::stdout();
            let _ = writeln!(out, "listening at http://{address}, {} computes", self.model.device)
                .and_then(|()| out.flush());
            Ok(serve(listener, Arc::new(service), Limits::default(), stops).await)
        });
        if let Ok(connections @ 1..) = served {
            // The engine may still compute for them. The process does not wait for it, because a batch may take long.
            runtime.shutdown_background();
            return Err(Error::NotDrained { connections });
        }
        // With it ends the queue, and with that the thread of the engine.
        drop(runtime);
        let computed = engine.join();
        served?;
        computed.map_err(|_| Error::Panicked)
    }
}

/// Stops the server when the thread that has this ends.
struct OnEnd(UnboundedSender<()>);

impl Drop for OnEnd {
    fn drop(&mut self) {
        // A server that has stopped already takes no message.
        let _ = self.0.send(());
    }
}

/// Sends a message for each SIGTERM and SIGINT: the first begins to drain, the second ends the server.
fn forward_signals(stop: UnboundedSender<()>) -> io::Result<()> {
    // Registered before the server listens, so that no signal ends the process by itself.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        for effect in ["no new requests; those that have arrived are answered", "ends at once"] {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            say(&format!("{name}: {effect}"));
            let _ = stop.send(());
        }
    });
    Ok(())
}
