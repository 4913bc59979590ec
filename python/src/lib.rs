//! The Rust part of the Python package: classes over engines and tensors.
//!
//! | file | idea |
//! |---|---|
//! | `caller` | the line of the Python program that calls, as the site of what the call submits |
//! | `waiting` | calls into the engine: without the interpreter's lock, and ended by Ctrl-C |
//! | `errors` | Python exceptions from the engine's errors |
//! | `dtypes` | dtypes, and which one two of them give |
//! | `engine` | the class `Vm`, and the end of engines before that of the interpreter |
//! | `tensor` | the class `Tensor` |
//! | `operators` | its operators |
//! | `axes` | axes as Python counts them, and ops over them |
//! | `indexing` | keys in brackets, as views |
//! | `callbacks` | Python functions that are called once a tensor is there |
//! | `elements` | elements from and to NumPy arrays |
//! | `dlpack` | memory for other libraries, without a copy |
//! | `dlpack_in` | memory of other libraries, without a copy |
//! | `functions` | Python functions as instructions |
//! | `programs` | recorded functions |
//! | `ranks` | the class `Group` |
//! | `reports` | reports of traces |
#![deny(unsafe_code)]

use pyo3::prelude::*;

mod axes;
mod callbacks;
mod caller;
mod dlpack;
mod dlpack_in;
mod dtypes;
mod elements;
mod engine;
mod errors;
mod functions;
mod indexing;
mod operators;
mod programs;
mod ranks;
mod reports;
mod tensor;
mod waiting;

/// The Python part of the package imports this module.
#[pymodule(name = "_core", gil_used = false)]
mod core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::dtypes::PyDType;
    #[pymodule_export]
    use crate::dtypes::result_type;
    #[pymodule_export]
    use crate::engine::{PyLane, PyVm, close_all};
    #[pymodule_export]
    use crate::programs::{PyProgram, is_recording};
    #[pymodule_export]
    use crate::ranks::{PyGroup, finish_ranks, local_rank, world};
    #[pymodule_export]
    use crate::reports::PyRecording;
    #[pymodule_export]
    use crate::tensor::{PyTensor, concat, stack};

    /// Adds the dtypes by their names.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::dtypes::ALL.iter().try_for_each(|dtype| module.add(dtype.name(), *dtype))
    }
}
