//! Files of tensors: NumPy's `.npy` and `.npz`, and Hugging Face's `.safetensors`, read into and written from tensors of [`streamvm`].
//!
//! ```
//! use streamvm::{DeviceId, Vm};
//! use streamvm_files::{load, load_all, save, save_all};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::TempDir::new()?;
//! # let file = |name: &str| folder.path().join(name);
//! let vm = Vm::builder().build()?;
//! let w = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?.to(DeviceId::cpu(0))?;
//! save(file("w.npy"), &w.relu()?)?; // waits for the tensor; `numpy.load` reads the file
//! save_all(file("model.safetensors"), &[("fc.weight", &w), ("fc.bias", &w.sum(&[0])?)])?;
//!
//! let w = load(&vm, file("w.npy"), None)?; // a host tensor, which `.to(device)` copies
//! assert_eq!(w.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
//! let bias = load(&vm, file("model.safetensors"), Some("fc.bias"))?;
//! assert_eq!(bias.to_vec::<f32>()?, [4.0, 6.0]);
//! assert_eq!(load_all(&vm, file("model.safetensors"))?.len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! | | `.npy` | `.npz` | `.safetensors` |
//! |---|---|---|---|
//! | tensors | one, without a name | many, with names | many, with names |
//! | dtypes | all but `bf16` | all but `bf16` | all |
//! | read | little-endian; C and Fortran order | members as `numpy.savez` and `numpy.savez_compressed` write them | |
//! | written | as `numpy.save` does | as `numpy.savez` does, without compression | by the format's own crate |
//!
//! The extension of a path chooses the format. [`load`] and [`save`] work with tensors of an engine. [`TensorFile`] reads the header of a tensor,
//! and later its elements into an [`Array`], without an engine: the `streamvm` command checks scripts so. All functions block their thread, and
//! can be called from any thread but those of the engine.
//!
//! # Files that nobody vouches for
//!
//! No file makes a reader panic. A header has a greatest length, and reading it takes time and memory in proportion to its length. A buffer is
//! allocated only after its length was checked against [`MAX_ELEMENT_BYTES`] and the length of the file. Errors escape control characters.
#![deny(unsafe_code)]

/// Runs the programs of the first page as doctests; one of them uses this crate.
#[cfg(doctest)]
#[doc = include_str!("../../docs/getting-started.md")]
struct GettingStartedPage;

mod array;
mod error;
mod format;
mod npy;
mod npy_header;
mod npz;
pub mod printable;
mod safetensors;
pub mod spelling;
mod tensor_file;
mod tensors;
#[cfg(test)]
mod tensors_tests;
#[cfg(test)]
mod tests;
mod unique_keys;
#[doc(hidden)]
pub mod whole_file;
mod zip;

pub use array::{Array, Data, Element};
pub use error::Error;
pub use format::Format;
pub use npy::{check_savable, write_npy};
pub use tensor_file::{MAX_ELEMENT_BYTES, TensorFile};
pub use tensors::{load, load_all, save, save_all};
