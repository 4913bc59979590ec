//! The benches, each beside its references.

mod add_chain;
mod allocator;
mod batches;
#[cfg(target_os = "linux")]
pub mod calls;
mod chain_program;
mod kernels;
mod launch;
mod loop_program;
mod overlap;
mod waits;
mod weights;

pub use add_chain::add_chain;
pub use allocator::allocator;
pub use batches::{BUFFERS, Batches, HOSTS};
pub use chain_program::chain_program;
pub use kernels::kernels;
pub use launch::launch;
pub use loop_program::loop_program;
pub use overlap::overlap;
pub use waits::{calls_of_streamvm, waits};
pub use weights::weights;

use streamvm::ep::cuda::CudaProducts;
use streamvm::{InstructionsBuilder, Vm};

use crate::CUDA;
use crate::contest::Outcome;
use crate::contest::error::Error;
use crate::contest::torch::Torch;

/// How much work there is.
#[derive(Copy, Clone, Debug)]
pub struct Sizes {
    /// Launches of a run of `launch`.
    pub launches: usize,
    /// Additions of a run of `add-chain`, of the runs of `chain-program`, and eight times those of `loop-program`.
    pub additions: usize,
    /// Additions of the program of `chain-program`, and rounds of a loop of `loop-program`.
    pub steps: usize,
    /// Rows and columns of a batch of `overlap` and of a layer of `weights`.
    pub n: usize,
    /// Products of a batch of `overlap`.
    pub products: usize,
    /// Batches of a run of `overlap`.
    pub batches: usize,
    /// Rows of what goes through the layers of `weights`.
    pub rows: usize,
    /// Layers of `weights`.
    pub layers: usize,
    /// Takes and gives back of a run of `allocator`.
    pub takes: usize,
    /// Rows and columns of the tensors of `kernels`, at least 256.
    pub kernel_n: usize,
    /// Calls of an op in a run of `kernels`.
    pub repetitions: usize,
}

impl Sizes {
    /// For a large GPU, such as an H200.
    pub const FULL: Sizes = Sizes {
        launches: 65_536,
        additions: 16_384,
        steps: 64,
        n: 4096,
        products: 1,
        batches: 48,
        rows: 2048,
        layers: 32,
        takes: 65_536,
        kernel_n: 8192,
        repetitions: 8,
    };

    /// For a driver that stands in for one: the figures mean nothing.
    pub const QUICK: Sizes = Sizes {
        launches: 256,
        additions: 64,
        steps: 8,
        n: 32,
        products: 2,
        batches: 8,
        rows: 16,
        layers: 6,
        takes: 256,
        kernel_n: 256,
        repetitions: 1,
    };
}

/// What a bench is given.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Measured runs of each contender.
    pub runs: u32,
    /// How much work.
    pub sizes: Sizes,
    /// PyTorch, if it is wanted.
    pub torch: Torch,
}

/// A bench by its name.
pub type Bench = (&'static str, fn(&Settings) -> Result<Outcome, Error>);

/// All of them.
pub const ALL: [Bench; 9] = [
    ("launch", launch),
    ("add-chain", add_chain),
    ("chain-program", chain_program),
    ("loop-program", loop_program),
    ("overlap", overlap),
    ("weights", weights),
    ("allocator", allocator),
    ("waits", waits),
    ("kernels", kernels),
];

/// Instructions of a list, where several are submitted at once.
const LIST: usize = 64;

/// An engine as it comes.
fn engine() -> Result<Vm, Error> {
    Ok(Vm::builder().build()?)
}

/// What has computed the engine's products, for the report.
fn products_of(vm: &Vm) -> Result<String, Error> {
    let CudaProducts { cublas, own } = vm.cuda_products(CUDA)?;
    Ok(format!("products by streamvm: {cublas} by cuBLAS, {own} by its own kernel"))
}

/// Issues `count` instructions in lists of `size`, and waits for all of them.
fn in_lists(
    vm: &Vm,
    count: usize,
    size: usize,
    mut issue: impl FnMut(&mut InstructionsBuilder) -> Result<(), Error>,
) -> Result<(), Error> {
    for start in (0..count).step_by(size) {
        let mut builder = InstructionsBuilder::new();
        for _ in start..count.min(start + size) {
            issue(&mut builder)?;
        }
        vm.submit(builder.finish())?;
    }
    Ok(vm.wait_all()?)
}
