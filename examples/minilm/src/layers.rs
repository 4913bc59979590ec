//! The layers of an encoder, with all weights on the device, or with those of two layers.
//!
//! Streamed weights stay in host memory, pinned where the device has such memory, those of a layer one after the other. The device has two
//! buffers. Before layer n is submitted, the copy of layer n + 1 to the other buffer is: soft sync orders the copy after layer n - 1, which read
//! that buffer, and nothing else, so the copy runs beside layer n. A layer is computed on views of its buffer by the same calls as a resident one,
//! and gives the same bits.

use std::sync::{Mutex, PoisonError};

use streamvm::{DType, DeviceId, Tensor, Vm};

use crate::config::Config;
use crate::error::Error;
use crate::layer::{Layer, Over, Read, weights};

/// Where weights are while an encoder computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// All on the device.
    Resident,
    /// All on the device, and the calls are compiled, once for all batches up to a size.
    Compiled {
        /// The most texts of a batch.
        texts: usize,
        /// The most tokens of a text.
        tokens: usize,
    },
    /// In host memory, and those of two layers on the device.
    Streamed,
}

/// The layers of an encoder.
pub(crate) enum Layers {
    Resident(Vec<Layer>),
    Streamed(Box<Streamed>),
}

/// Layers that take turns in two buffers.
pub(crate) struct Streamed {
    /// The weights of each layer, in host memory.
    host: Vec<Tensor>,
    /// Locked while a batch is submitted, because layers of two batches may not mix.
    buffers: Mutex<Buffers>,
}

/// Two buffers on the device.
struct Buffers {
    buffers: [Buffer; 2],
    /// The buffer that the next batch begins with: the one that the last layer of the batch before does not read.
    next: usize,
}

/// The weights of one layer at a time, and the layer that computes with them.
struct Buffer {
    weights: Tensor,
    layer: Layer,
}

/// Weights begin at multiples of this many elements: 256 bytes, as allocations on a GPU do, because kernels are faster with aligned operands.
const ALIGNMENT: usize = 64;

/// The elements of a shape, rounded up so that the next weight is aligned.
fn room(shape: &[usize]) -> usize {
    shape.iter().product::<usize>().next_multiple_of(ALIGNMENT)
}

impl Layers {
    /// The layers of an encoder.
    pub(crate) fn new(
        vm: &Vm,
        device: DeviceId,
        config: &Config,
        placement: Placement,
        read: &mut Read<'_>,
    ) -> Result<Layers, Error> {
        if placement == Placement::Streamed {
            return Ok(Layers::Streamed(Box::new(Streamed::new(vm, device, config, read)?)));
        }
        let weights = weights(config);
        let layer = |number| -> Result<Layer, Error> {
            let mut left = weights.iter();
            Layer::new(config, || -> Result<Tensor, Error> {
                let weight = left.next().expect("a layer takes as many tensors as it has weights");
                Ok(vm.from_slice(&weight.elements(number, read)?, &weight.shape)?.to(device)?)
            })
        };
        Ok(Layers::Resident((0..config.num_hidden_layers).map(layer).collect::<Result<_, _>>()?))
    }

    /// The same layers over the tensors that `of` gives for those of these; `None` if they take turns.
    pub(crate) fn over(&self, of: &mut Over<'_>) -> Option<Result<Layers, streamvm::Error>> {
        let Layers::Resident(layers) = self else { return None };
        Some(layers.iter().map(|layer| layer.over(of)).collect::<Result<_, _>>().map(Layers::Resident))
    }

    /// Calls `compute` for each layer, in their order. Submits and does not wait.
    pub(crate) fn each(
        &self,
        compute: impl FnMut(&Layer) -> Result<(), streamvm::Error>,
    ) -> Result<(), streamvm::Error> {
        match self {
            Layers::Resident(layers) => layers.iter().try_for_each(compute),
            Layers::Streamed(layers) => layers.each(compute),
        }
    }
}

impl Streamed {
    fn new(vm: &Vm, device: DeviceId, config: &Config, read: &mut Read<'_>) -> Result<Streamed, Error> {
        let weights = weights(config);
        let size = weights.iter().map(|weight| room(&weight.shape)).sum::<usize>();
        let packed = |number| -> Result<Tensor, Error> {
            let mut elements = Vec::with_capacity(size);
            for weight in &weights {
                let end = elements.len() + room(&weight.shape);
                elements.extend(weight.elements(number, read)?);
                elements.resize(end, 0.0);
            }
            Ok(vm.from_slice_pinned(device, &elements, &[size])?)
        };
        let host = (0..config.num_hidden_layers).map(packed).collect::<Result<_, _>>()?;
        let buffers = [Buffer::new(vm, device, config, size)?, Buffer::new(vm, device, config, size)?];
        Ok(Streamed { host, buffers: Mutex::new(Buffers { buffers, next: 0 }) })
    }

    fn each(&self, mut compute: impl FnMut(&Layer) -> Result<(), streamvm::Error>) -> Result<(), streamvm::Error> {
        // A panic leaves nothing that the next batch uses: it copies all that it reads.
        let mut locked = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let Buffers { buffers, next: now } = &mut *locked;
        let mut copies = self.host.iter();
        if let Some(first) = copies.next() {
            buffers[*now].weights.copy_from(first)?;
        }
        for _ in &self.host {
            if let Some(next) = copies.next() {
                buffers[1 - *now].weights.copy_from(next)?;
            }
            compute(&buffers[*now].layer)?;
            *now = 1 - *now;
        }
        Ok(())
    }
}

impl Buffer {
    fn new(vm: &Vm, device: DeviceId, config: &Config, size: usize) -> Result<Buffer, streamvm::Error> {
        let buffer = vm.zeros(device, DType::F32, &[size])?;
        let (weights, mut at) = (weights(config), 0);
        let mut left = weights.iter();
        let layer = Layer::new(config, || -> Result<Tensor, streamvm::Error> {
            let shape = &left.next().expect("a layer takes as many tensors as it has weights").shape;
            let view = buffer.slice(0, at..at + shape.iter().product::<usize>())?.reshape(shape)?;
            at += room(shape);
            Ok(view)
        })?;
        Ok(Buffer { weights: buffer, layer })
    }
}
