//! The calls of an engine that make tensors from nothing or from a caller's data.

use std::sync::Arc;

use streamvm_ep::{DType, DeviceId, Element, MemoryKind, Scalar, Shape, Site};
use streamvm_instructions::{
    BuildError, Error, Generator, InstructionList, InstructionsBuilder, Kind, Lane, Place, Tensor,
};
use streamvm_stream::{StreamKey, StreamType};

use crate::vm::Vm;

/// The place and memory kind of tensors with a caller's data, if the caller names no device.
const HOST: (Place, MemoryKind) = (Place::Host, MemoryKind::Pageable);

impl Vm {
    /// A host tensor of `shape` with a copy of `elements`, in row-major order. Waits for no instruction, unless memory is exhausted:
    /// then it waits until pending instructions have released some.
    ///
    /// # Errors
    /// The shape is impossible or does not have `elements.len()` elements; out of memory; the engine is closed.
    #[track_caller]
    pub fn from_slice<T: Element>(&self, elements: &[T], shape: &[usize]) -> Result<Tensor, Error> {
        self.create(HOST, T::DTYPE, elements.len(), shape, T::as_bytes(elements))
    }

    /// A tensor of `shape` on `place`, with a copy of `elements` in row-major order. They are copied at once into memory that the host can access, as that of a CPU;
    /// for other devices this is [`from_slice`](Vm::from_slice) and [`Tensor::to`].
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// use streamvm::{DeviceId, Vm};
    /// let (vm, cpu) = (Vm::builder().build()?, DeviceId::cpu(0));
    /// let x = vm.from_slice_on(cpu, &[1.0f32, 2.0], &[2])?;
    /// assert_eq!((x.device(), x.to_vec::<f32>()?), (Some(cpu), vec![1.0, 2.0]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Vm::from_slice`] and [`Tensor::to`].
    #[track_caller]
    pub fn from_slice_on<T: Element>(
        &self,
        place: impl Into<Place>,
        elements: &[T],
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let place = place.into();
        match place.device() {
            Some(device) if device.kind.info().host_memory => {
                self.create((place, MemoryKind::Device), T::DTYPE, elements.len(), shape, T::as_bytes(elements))
            }
            Some(_) => self.from_slice(elements, shape)?.to(place),
            None => self.from_slice(elements, shape),
        }
    }

    /// A tensor of `shape` over the elements that `owner` has, in row-major order, without a copy: a vector, a mapped file, memory of another library. It is a tensor like others, but what would write
    /// or release it is refused ([`Error::Lent`]). Once its last handle is gone and all that was submitted has read it, the engine drops `owner` on its callback thread, or at the end of the engine.
    /// For memory that the host can access, this takes only a short lock.
    ///
    /// For a device whose memory the host cannot access, this submits a copy, as [`Tensor::to`] does, and the tensor may be written. An engine with a race detector copies the elements at once: the
    /// detector knows the engine's memory only.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// use streamvm::{DeviceId, Vm};
    /// let (vm, cpu) = (Vm::builder().build()?, DeviceId::cpu(0));
    /// let weights = vm.adopt(cpu, vec![1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// assert_eq!((&weights + 1.0)?.to_vec::<f32>()?, [2.0, 3.0, 4.0, 5.0]);
    /// assert!(weights.fill(0.0).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The shape is impossible or does not have as many elements as `owner`; the device does not exist; the engine is closed; those of [`Tensor::to`].
    #[track_caller]
    pub fn adopt<T: Element>(
        &self,
        place: impl Into<Place>,
        owner: impl AsRef<[T]> + Send + Sync + 'static,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let (place, site) = (place.into(), Site::caller());
        // The elements stay where they are when an `Arc` moves.
        let owner = Arc::new(owner);
        let elements: &[T] = (*owner).as_ref();
        let shape = Shape::new(shape).map_err(BuildError::from)?;
        if shape.elements() != elements.len() {
            return Err(length("adopt", T::DTYPE, elements.len(), &shape));
        }
        let (near, memory) = match place.device() {
            Some(device) if device.kind.info().host_memory => (place, MemoryKind::Device),
            _ => HOST,
        };
        let tensor = Tensor::unbound(near, memory, T::DTYPE, shape);
        let adopted = if self.engine.observer.is_some() {
            let copy = Arc::new(elements.to_vec());
            let first = T::as_bytes(&copy).as_ptr();
            self.engine.adopt(&tensor, first, Box::new((copy, owner)), site)
        } else {
            let first = T::as_bytes(elements).as_ptr();
            self.engine.adopt(&tensor, first, Box::new(owner), site)
        };
        adopted.map_err(|error| error.about(None, &format!("adopt, which makes {}", tensor.described()), site))?;
        if near == place { Ok(tensor) } else { tensor.to(place) }
    }

    /// A tensor of `shape` in pinned host memory of `device`, with a copy of `elements` in row-major order. The device copies from it
    /// without staging. Callers' functions can access it as they access host tensors. Waits as [`Vm::from_slice`] does.
    ///
    /// # Errors
    /// Those of [`Vm::from_slice`]; the device does not exist.
    #[track_caller]
    pub fn from_slice_pinned<T: Element>(
        &self,
        device: DeviceId,
        elements: &[T],
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        self.create((device.into(), MemoryKind::Pinned), T::DTYPE, elements.len(), shape, T::as_bytes(elements))
    }

    #[track_caller]
    fn create(
        &self,
        (place, memory): (Place, MemoryKind),
        dtype: DType,
        elements: usize,
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<Tensor, Error> {
        let shape = Shape::new(shape).map_err(BuildError::from)?;
        if shape.elements() != elements {
            return Err(length("from_slice", dtype, elements, &shape));
        }
        let tensor = Tensor::unbound(place, memory, dtype, shape);
        let site = Site::caller();
        self.engine
            .create_from(&tensor, bytes, site)
            .map_err(|error| error.about(None, &format!("from_slice, which makes {}", tensor.described()), site))?;
        Ok(tensor)
    }

    /// [`full`](Vm::full) of zeros, or `false`, in pinned host memory of `device`, from and to which the device copies without staging.
    ///
    /// # Errors
    /// Those of [`Vm::full`].
    #[track_caller]
    pub fn zeros_pinned(&self, device: DeviceId, dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        self.new_pinned(device, dtype, shape, Kind::Fill(Scalar::zero(dtype)))
    }

    /// A tensor in pinned host memory of `device` that has memory and no elements yet: the first instruction that uses it writes it.
    ///
    /// # Errors
    /// Those of [`Vm::zeros_pinned`].
    #[track_caller]
    pub fn empty_pinned(&self, device: DeviceId, dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        self.new_pinned(device, dtype, shape, Kind::Allocate)
    }

    #[track_caller]
    fn new_pinned(&self, device: DeviceId, dtype: DType, shape: &[usize], kind: Kind) -> Result<Tensor, Error> {
        let tensor = Tensor::unbound(device.into(), MemoryKind::Pinned, dtype, Shape::new(shape)?);
        let stream = StreamKey::new(device, StreamType::PinnedCompute, Lane::current().0);
        let mut list = InstructionList::new();
        list.push(stream, kind, [tensor.write()], Site::caller())?;
        self.submit(list)?;
        Ok(tensor)
    }

    /// A new tensor on `place` that has memory and no elements yet: the first instruction that uses it writes it.
    ///
    /// # Errors
    /// Those of [`Vm::full`].
    #[track_caller]
    pub fn empty(&self, place: impl Into<Place>, dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let tensor = builder.allocate(place, dtype, shape)?;
        self.submit(builder.finish())?;
        Ok(tensor)
    }

    /// Submits an instruction on the compute stream of `place` that sets every element of a new tensor of `dtype` and `shape` to
    /// `value`; returns the tensor. Blocks as [`Vm::submit`] does.
    ///
    /// # Errors
    /// The shape is impossible, or the dtype cannot hold the value; those of [`Vm::submit`].
    #[track_caller]
    pub fn full(
        &self,
        place: impl Into<Place>,
        dtype: DType,
        shape: &[usize],
        value: impl Into<Scalar>,
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let tensor = builder.full(place, dtype, shape, value)?;
        self.submit(builder.finish())?;
        Ok(tensor)
    }

    /// [`Vm::full`] of zeros, or `false`.
    ///
    /// # Errors
    /// The shape is impossible; those of [`Vm::submit`].
    #[track_caller]
    pub fn zeros(&self, place: impl Into<Place>, dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        self.full(place, dtype, shape, Scalar::zero(dtype))
    }

    /// [`Vm::full`] of ones, or `true`.
    ///
    /// # Errors
    /// As [`Vm::zeros`].
    #[track_caller]
    pub fn ones(&self, place: impl Into<Place>, dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        self.full(place, dtype, shape, Scalar::one(dtype))
    }

    /// Submits an op that makes the numbers from `first` on, by `step` each, that are before `end`, as a new tensor of `dtype` on `device`; see
    /// [`InstructionsBuilder::arange`]. Blocks as [`Vm::submit`] does.
    ///
    /// # Errors
    /// The numbers do not fit the dtype, or are no sequence; those of [`Vm::submit`].
    #[track_caller]
    pub fn arange(
        &self,
        device: DeviceId,
        dtype: DType,
        first: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let numbers = builder.arange(device, dtype, first, end, step)?;
        self.submit(builder.finish())?;
        Ok(numbers)
    }

    /// Submits an op and a fill that make `count` numbers from `first` to `last`, as a new tensor of `dtype` on `device`; see [`InstructionsBuilder::linspace`].
    /// Blocks as [`Vm::submit`] does.
    ///
    /// # Errors
    /// The dtype is no float, or the numbers are not finite; those of [`Vm::submit`].
    #[track_caller]
    pub fn linspace(
        &self,
        device: DeviceId,
        dtype: DType,
        first: f64,
        last: f64,
        count: usize,
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let numbers = builder.linspace(device, dtype, first, last, count)?;
        self.submit(builder.finish())?;
        Ok(numbers)
    }

    /// Submits the fills of a new matrix of `dtype` on `place`, with ones, or `true`, on its diagonal and zeros elsewhere; see [`InstructionsBuilder::eye`].
    /// Blocks as [`Vm::submit`] does.
    ///
    /// # Errors
    /// The shape is impossible; those of [`Vm::submit`].
    #[track_caller]
    pub fn eye(&self, place: impl Into<Place>, dtype: DType, rows: usize, columns: usize) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let matrix = builder.eye(place, dtype, rows, columns)?;
        self.submit(builder.finish())?;
        Ok(matrix)
    }

    /// A new tensor of `dtype` and `shape` on `device` with random numbers of the uniform distribution over `[0, 1)`; see
    /// [`InstructionsBuilder::rand`]. Blocks as [`Vm::submit`] does.
    ///
    /// # Errors
    /// The shape is impossible, or the dtype is no float; those of [`Vm::submit`].
    #[track_caller]
    pub fn rand(
        &self,
        generator: &Generator,
        device: DeviceId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let tensor = builder.rand(generator, device, dtype, shape)?;
        self.submit(builder.finish())?;
        Ok(tensor)
    }

    /// A new tensor of `dtype` and `shape` on `device` with random numbers of the normal distribution of mean 0 and variance 1; see
    /// [`InstructionsBuilder::randn`]. Blocks as [`Vm::submit`] does.
    ///
    /// # Errors
    /// As [`Vm::rand`].
    #[track_caller]
    pub fn randn(
        &self,
        generator: &Generator,
        device: DeviceId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let tensor = builder.randn(generator, device, dtype, shape)?;
        self.submit(builder.finish())?;
        Ok(tensor)
    }
}

#[track_caller]
fn length(call: &'static str, dtype: DType, elements: usize, shape: &Shape) -> Error {
    let error = BuildError::Length { dtype, elements, shape: Box::new(*shape) };
    Error::Build { error, call: Some(call), site: Site::caller() }
}
