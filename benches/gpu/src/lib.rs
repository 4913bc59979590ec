//! streamvm on a GPU, beside the same work by hand and in PyTorch.
//!
//! A figure of its own says little, so every workload ([`benches`]) runs in turn with its references in one process
//! ([`contest`]): driver calls as one writes them by hand ([`hand`], through cudarc's thin layer), and PyTorch in a child
//! process that waits while others run ([`contest::torch`]). [`faults`] are those that a real device allows. `run.sh` runs them with
//! the suites on a machine that has nothing but the binaries.
//!
//! The driver that stands in for NVIDIA's exports the calls that streamvm makes, and what is written by hand here makes no
//! others where it says no memory pools are there: so all but the figures is tested without a GPU.

pub mod benches;
pub mod contest;
pub mod faults;
pub mod hand;

use streamvm::DeviceId;

/// The device that all of it runs on.
pub const CUDA: DeviceId = DeviceId::cuda(0);

/// PTX of [`EMPTY`], which any driver of the last ten years compiles.
pub const EMPTY_PTX: &str =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry standin_empty()\n{\n\tret;\n}\n";

/// A kernel that does nothing, under the name by which the driver that stands in for NVIDIA's knows one.
pub const EMPTY: &str = "standin_empty";
