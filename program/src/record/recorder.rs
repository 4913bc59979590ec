//! Recording a program from a closure.

use std::marker::PhantomData;
use std::panic::Location;

use streamvm_ep::{DType, MemoryKind, Scalar, Shape};
use streamvm_instructions::{BuildError, Error, InstructionList, InstructionsBuilder, Place, Tensor};

use crate::ir::program::{Program, ValueRole};
use crate::record::engine::{Open, with};

/// What a recorded closure gets: it names feeds, parameters and fetches. It stays on its thread.
#[derive(Debug)]
pub struct Recorder {
    /// A recording belongs to one thread.
    thread: PhantomData<*const ()>,
}

/// Runs `f`, and returns the program of the calls that it makes on tensors of the recording. Nothing is computed. Calls on other tensors
/// run as always. Recordings may be nested; calls on tensors of an outer recording are refused in the inner one.
///
/// ```
/// use streamvm_ep::{DType, DeviceId};
///
/// # fn main() -> Result<(), streamvm_instructions::Error> {
/// let program = streamvm_program::record("twice", |r| {
///     let x = r.feed("x", DeviceId::cpu(0), DType::F32, &[4])?;
///     r.fetch("y", &(&x + &x)?)
/// })?;
/// assert_eq!(program.steps.len(), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of `f`; [`ProgramError::Name`](streamvm_instructions::ProgramError::Name) for a name that is empty or was given twice.
pub fn record(name: impl Into<String>, f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Result<Program, Error> {
    let open = Open::begin(name.into());
    f(&Recorder { thread: PhantomData })?;
    let program = open.finish();
    program.check()?;
    Ok(program)
}

impl Recorder {
    /// A tensor that stands for an input of each run.
    ///
    /// # Errors
    /// The shape is impossible.
    pub fn feed(
        &self,
        name: impl Into<String>,
        place: impl Into<Place>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let shape = Shape::new(shape)?;
        let tensor = Tensor::unbound(place.into(), MemoryKind::Device, dtype, shape);
        with(|recording| Ok(recording.add_given(name.into(), tensor, ValueRole::Feed)))
    }

    /// A tensor that stands for a tensor which outlives the runs, and which they may write. It has the place, dtype and shape of `like`;
    /// the tensor itself is given when the program is compiled.
    ///
    /// # Errors
    /// [`ProgramError::RecordingOver`](streamvm_instructions::ProgramError::RecordingOver).
    pub fn parameter(&self, name: impl Into<String>, like: &Tensor) -> Result<Tensor, Error> {
        let tensor = Tensor::unbound(like.place(), like.memory(), like.dtype(), like.shape());
        with(|recording| Ok(recording.add_given(name.into(), tensor, ValueRole::Parameter)))
    }

    /// Names `tensor` as a result of each run.
    ///
    /// # Errors
    /// [`ProgramError::NotRecordable`](streamvm_instructions::ProgramError::NotRecordable) if no step of this recording has written it.
    #[track_caller]
    pub fn fetch(&self, name: impl Into<String>, tensor: &Tensor) -> Result<(), Error> {
        let location = Location::caller();
        with(|recording| recording.add_fetch(name.into(), tensor, location))
    }

    /// Records a list.
    ///
    /// # Errors
    /// An instruction of the list cannot be recorded; then none is.
    pub fn submit(&self, list: InstructionList) -> Result<(), Error> {
        with(|recording| recording.add(&list))
    }

    /// Records a fill of a new tensor.
    ///
    /// # Errors
    /// The shape is impossible, or the dtype cannot hold the value.
    #[track_caller]
    pub fn full(
        &self,
        place: impl Into<Place>,
        dtype: DType,
        shape: &[usize],
        value: impl Into<Scalar>,
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let tensor = builder.full(place, dtype, shape, value).map_err(|error: BuildError| Error::from(error))?;
        self.submit(builder.finish())?;
        Ok(tensor)
    }
}
