//! Blocks that another thread delivers: functions that are over later than they return, back pressure, a lost answer.
//!
//! The producer asks for blocks and does not wait for them; a thread of input and output answers in whatever order, by the
//! handle of each request; consumers run as their blocks come. A request that is lost, its handle dropped, fails its block and
//! what is made of it, until it is asked for again.
//!
//! Run with `cargo run --example producer_consumer -p streamvm` over blocks that are made up, or with a folder after `--` over
//! the files in it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use streamvm::{OnComplete, TimeLimit, Var, Vm};

type Anything = Box<dyn Error + Send + Sync>;

/// Requests and consumers that may be pending: the producer blocks beyond.
const PENDING: u64 = 32;
/// Places for blocks, used in turn: a request for one waits for the consumer of what lay there.
const PLACES: usize = 64;
/// Every so many requests one is lost.
const LOST: usize = 100;
/// Blocks that are made up.
const BLOCKS: usize = 1_000;

fn main() -> ExitCode {
    env_logger::init();
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let result = match arguments.as_slice() {
        [] => run((0..BLOCKS).map(Source::Made).collect()),
        [folder] => files_of(folder).and_then(run),
        _ => Err("it takes one folder, or nothing".into()),
    };
    if let Err(error) = result {
        eprintln!("producer_consumer: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Where a block comes from.
#[derive(Clone)]
enum Source {
    /// Made up of this number.
    Made(usize),
    File(PathBuf),
}

impl Source {
    fn load(&self) -> Result<Vec<u8>, Anything> {
        match self {
            Source::Made(number) => Ok(vec![(number % 251) as u8; 64 + number % 17]),
            Source::File(path) => Ok(fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?),
        }
    }
}

fn files_of(folder: &Path) -> Result<Vec<Source>, Anything> {
    let entries =
        fs::read_dir(folder).map_err(|error| format!("cannot read the folder {}: {error}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    let mut files: Vec<PathBuf> = paths.into_iter().filter(|path| path.is_file()).collect();
    if files.is_empty() {
        return Err(format!("there are no files in {}; give a folder with some", folder.display()).into());
    }
    files.sort();
    Ok(files.into_iter().map(Source::File).collect())
}

/// Where one block is put.
type Place = Arc<Mutex<Vec<u8>>>;

/// What the thread of input and output is asked for.
struct Request {
    source: Source,
    place: Place,
    /// Nobody answers it.
    lost: bool,
    handle: OnComplete,
}

/// What that thread has done.
#[derive(Default)]
struct Counts {
    /// Requests that were not answered yet.
    open: AtomicU64,
    most_open: AtomicU64,
    answered: AtomicUsize,
    lost: AtomicUsize,
}

/// The thread of input and output: takes what there is, and answers the last one first.
fn serve(requests: &Receiver<Request>, counts: &Counts) {
    while let Ok(first) = requests.recv() {
        let mut batch = vec![first];
        batch.extend(requests.try_iter());
        while let Some(Request { source, place, lost, handle }) = batch.pop() {
            counts.open.fetch_sub(1, Ordering::Relaxed);
            if lost {
                counts.lost.fetch_add(1, Ordering::Relaxed);
                drop(handle);
                continue;
            }
            let loaded = source.load().map(|block| *place.lock().unwrap_or_else(PoisonError::into_inner) = block);
            counts.answered.fetch_add(1, Ordering::Relaxed);
            handle.complete(loaded);
        }
    }
}

/// One block that is asked for, and what its consumer makes of it.
struct Item {
    source: Source,
    sum: Arc<AtomicU64>,
    done: Var,
}

/// Asks for blocks and has them consumed.
struct Producer<'vm> {
    vm: &'vm Vm,
    requests: Sender<Request>,
    counts: Arc<Counts>,
    places: Vec<(Var, Place)>,
}

impl Producer<'_> {
    /// Asks for the block of `item` at the next place, and pushes its consumer. Blocks while too much is pending.
    fn ask(&self, number: usize, item: &Item, lost: bool) -> Result<(), Anything> {
        let (var, place) = &self.places[number % PLACES];
        let (requests, counts, source, put) =
            (self.requests.clone(), self.counts.clone(), item.source.clone(), place.clone());
        // Over when its handle is used; no worker waits for that.
        self.vm.push_async("request", [var.write()], move |handle| {
            let open = counts.open.fetch_add(1, Ordering::Relaxed) + 1;
            counts.most_open.fetch_max(open, Ordering::Relaxed);
            // If the thread is gone, so is the handle, and the request fails.
            let _ = requests.send(Request { source, place: put, lost, handle });
        })?;
        let (sum, from) = (item.sum.clone(), place.clone());
        self.vm.push("consume", [var.read(), item.done.write()], move || {
            let block = from.lock().map_err(|_| "a consumer panicked")?;
            sum.store(block.iter().map(|byte| u64::from(*byte)).sum(), Ordering::Relaxed);
            Ok(())
        })?;
        Ok(())
    }
}

fn run(sources: Vec<Source>) -> Result<(), Anything> {
    let vm = Vm::builder().max_instructions(PENDING).build()?;
    // In inline mode each request waits for the other thread, and only within a time limit.
    let _limit = TimeLimit(Duration::from_secs(60)).enter();
    let items: Vec<Item> =
        sources.into_iter().map(|source| Item { source, sum: Arc::default(), done: vm.var() }).collect();
    let (requests, received) = channel();
    let counts = Arc::new(Counts::default());
    let served = counts.clone();
    let thread = thread::spawn(move || serve(&received, &served));
    let places = (0..PLACES).map(|_| (vm.var(), Place::default())).collect();
    let producer = Producer { vm: &vm, requests, counts: counts.clone(), places };

    let is_lost = |number: usize| number % LOST == LOST - 1;
    for (number, item) in items.iter().enumerate() {
        producer.ask(number, item, is_lost(number))?;
        assert!(vm.stats().in_flight <= PENDING, "the producer is held back");
    }
    let failed: Vec<usize> = (0..items.len()).filter(|number| items[*number].done.wait().is_err()).collect();
    let lost: Vec<usize> = (0..items.len()).filter(|number| is_lost(*number)).collect();
    println!("{} blocks asked for, {} under way at most", items.len(), counts.most_open.load(Ordering::Relaxed));
    if let Some(first) = failed.first() {
        let error = items[*first].done.wait().expect_err("it is told each time");
        println!("{} failed; the first: {error}", failed.len());
    }
    // A block that came later to the same place has healed that. Files may fail by themselves.
    assert!(lost.iter().all(|number| failed.contains(number)), "what was lost fails its consumer");
    assert_eq!(counts.lost.load(Ordering::Relaxed), lost.len());
    assert!(counts.most_open.load(Ordering::Relaxed) <= PENDING);

    // Once more: what is overwritten is whole again.
    for number in &failed {
        producer.ask(*number, &items[*number], false)?;
    }
    for item in &items {
        item.done.wait()?;
        let expected: u64 = item.source.load()?.iter().map(|byte| u64::from(*byte)).sum();
        assert_eq!(item.sum.load(Ordering::Relaxed), expected);
    }
    assert_eq!(counts.answered.load(Ordering::Relaxed), items.len(), "each block was delivered once");
    let total: u64 = items.iter().map(|item| item.sum.load(Ordering::Relaxed)).sum();
    println!("all {} consumed, {} asked for twice; the bytes add up to {total}", items.len(), failed.len());
    vm.wait_all()?;
    // The thread ends when nobody can ask it any more.
    drop(producer);
    thread.join().map_err(|_| "the thread of input and output panicked")?;
    Ok(())
}
