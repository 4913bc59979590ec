//! A model as a case: all-MiniLM-L6-v2 on a batch of texts of 128 tokens, from tokens to embeddings.
//!
//! The other libraries run the same weights. As speed without the right result is worth nothing, each library names one element of its
//! result, and `kernels` compares these.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use streamvm::{DeviceId, Vm, VmBuilder};
use streamvm_benches::harness::table::{aligned, number};
use streamvm_minilm::bert::Bert;
use streamvm_minilm::layers::Placement;
use streamvm_minilm::tokens::Batch;

use crate::ours::{Failure, time};

/// The most texts of a batch.
const MOST_TEXTS: usize = 32;

/// Tokens of a text.
const TOKENS: usize = 128;

/// The difference that two libraries may have in an element of an embedding.
pub(crate) const TOLERANCE: f64 = 1e-5;

/// The batch of a case `minilm_BATCH`.
pub(crate) fn batch_of(name: &str) -> Option<usize> {
    name.strip_prefix("minilm_")?.parse().ok()
}

/// The model on a device.
pub(crate) struct Model {
    vm: Vm,
    bert: Bert,
}

impl Model {
    /// The model in `folder`; `None` if the folder has no model.
    pub(crate) fn read(folder: &Path, threads: usize) -> Result<Option<Model>, Failure> {
        if !folder.join("model.safetensors").is_file() {
            return Ok(None);
        }
        Ok(Some(Model::of(Vm::builder(), Placement::Compiled { texts: MOST_TEXTS, tokens: TOKENS }, folder, threads)?))
    }

    fn of(builder: VmBuilder, placement: Placement, folder: &Path, threads: usize) -> Result<Model, Failure> {
        let vm = builder.cpu_threads(threads).kernel_threads(threads).build()?;
        let bert = Bert::read(&vm, DeviceId::cpu(0), placement, folder)?;
        vm.wait_all()?;
        Ok(Model { vm, bert })
    }

    /// The median time of a batch in nanoseconds, from its tokens until its embeddings are there.
    pub(crate) fn measure(&self, batch: usize, budget: Duration) -> Result<f64, Failure> {
        let batch = tokens(batch);
        Ok(time(budget, || self.bert.embed(&self.vm, &batch)?.wait())?)
    }

    /// The first element of the last embedding.
    pub(crate) fn element(&self, batch: usize) -> Result<f64, Failure> {
        let embeddings = self.bert.embed(&self.vm, &tokens(batch))?.to_vec::<f32>()?;
        Ok(f64::from(embeddings[embeddings.len() - self.bert.size()]))
    }
}

/// Texts of words of the vocabulary, as `tokens` in drivers/model.py and drivers/candle: each begins with the token that begins a text, and ends
/// with that which ends it.
fn tokens(texts: usize) -> Batch {
    let id = |text: usize, place: usize| match place {
        0 => 101,
        _ if place + 1 == TOKENS => 102,
        _ => 1_996 + (text * 131 + place * 7_919) as u32 % 20_000,
    };
    let rows: Vec<Vec<u32>> = (0..texts).map(|text| (0..TOKENS).map(|place| id(text, place)).collect()).collect();
    Batch::of(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Batches over which the times of ops are summed.
const BATCHES: u32 = 20;

/// Where the time of a batch goes, as a table: the time of each op, and the time in which no kernel runs, which is that of the engine. An engine with
/// a profile runs the batches one after the other.
pub(crate) fn by_op(folder: &Path, threads: usize, batch: usize) -> Result<String, Failure> {
    // A profile tells of the calls one by one if they are not compiled.
    let model = Model::of(Vm::builder().profile(true), Placement::Resident, folder, threads)?;
    let batch = tokens(batch);
    // The profile counts from the begin of the engine, and the first batches allocate memory.
    let times = || model.vm.profile().map_or_else(Vec::new, |profile| profile.ops);
    for _ in 0..2 {
        model.bert.embed(&model.vm, &batch)?.wait()?;
    }
    let before = times();
    let start = Instant::now();
    for _ in 0..BATCHES {
        model.bert.embed(&model.vm, &batch)?.wait()?;
    }
    let whole = start.elapsed();
    let mut sums: BTreeMap<String, (u64, Duration)> = BTreeMap::new();
    for op in times() {
        let sum = sums.entry(op.name).or_default();
        *sum = (sum.0 + op.count, sum.1 + op.ran.total);
    }
    for op in before {
        let sum = sums.entry(op.name).or_default();
        *sum = (sum.0 - op.count, sum.1 - op.ran.total);
    }
    let mut by_op: Vec<(String, u64, Duration)> = sums
        .into_iter()
        .filter(|(_, (count, _))| *count > 0)
        .map(|(name, (count, time))| (name, count, time))
        .collect();
    by_op.sort_by_key(|(_, _, time)| std::cmp::Reverse(*time));
    let kernels: Duration = by_op.iter().map(|(_, _, time)| *time).sum();
    let line = |name: &str, calls: String, time: Duration| {
        let share = 100.0 * time.as_secs_f64() / whole.as_secs_f64();
        [name.to_owned(), calls, number(time.as_secs_f64() * 1e6 / f64::from(BATCHES)), number(share)]
    };
    let head = ["op", "calls", "µs a batch", "%"].map(str::to_owned);
    let ops = by_op.iter().map(|(name, count, time)| line(name, (count / u64::from(BATCHES)).to_string(), *time));
    let rest = line("no kernel", String::new(), whole.saturating_sub(kernels));
    Ok(aligned(&[head].into_iter().chain(ops).chain([rest]).collect::<Vec<_>>(), &[1, 2, 3]))
}
