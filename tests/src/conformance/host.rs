//! Tensors on the host: values drawn from a seed in all kinds of views, as bytes to upload and to compare.

pub(super) use streamvm_ep::Samples as Pool;
use streamvm_ep::{DType, Layout, Shape, bf16, f16};

use super::reference::{Dense, Value, draw, indices};
use crate::support::random::Random;

/// The layout of a tensor in its storage.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum View {
    Contiguous,
    /// Axes stored in reverse order.
    Permuted,
    /// Part of a larger storage, with an offset.
    Sliced,
    /// Every other element of each axis.
    Stepped,
    /// One element along every axis but the last; for inputs.
    Broadcast,
}

/// The views that may be written.
pub(super) const WRITABLE: [View; 4] = [View::Contiguous, View::Permuted, View::Sliced, View::Stepped];

impl View {
    /// A layout of this shape.
    pub(super) fn layout(self, dims: &[usize]) -> Layout {
        let dense = |dims: &[usize]| Layout::contiguous(Shape::new(dims).expect("a small shape"));
        match self {
            View::Contiguous => dense(dims),
            View::Permuted => {
                let stored: Vec<usize> = dims.iter().rev().copied().collect();
                let order: Vec<usize> = (0..dims.len()).rev().collect();
                dense(&stored).permute(&order).expect("each axis once")
            }
            View::Sliced => {
                let stored: Vec<usize> = dims.iter().map(|dim| dim + 2).collect();
                let all = dense(&stored);
                let part = |layout: Layout, (axis, &dim): (usize, &usize)| layout.slice(axis, 1..1 + dim);
                dims.iter().enumerate().try_fold(all, part).expect("within the axes")
            }
            View::Stepped => {
                let doubled: Vec<usize> = dims.iter().map(|dim| dim * 2).collect();
                let steps: Vec<usize> = dense(&doubled).strides().iter().map(|stride| stride * 2).collect();
                let shape = Shape::new(dims).expect("a small shape");
                Layout::with_strides(shape, &steps, 0).expect("one stride an axis")
            }
            View::Broadcast => {
                let mut stored = vec![1; dims.len()];
                if let (Some(stored), Some(last)) = (stored.last_mut(), dims.last()) {
                    *stored = *last;
                }
                dense(&stored).broadcast_to(&Shape::new(dims).expect("a small shape")).expect("sizes of 1")
            }
        }
    }
}

/// Storage and one view of it.
#[derive(Clone, Debug)]
pub(super) struct HostTensor {
    storage: Vec<Value>,
    pub(super) dtype: DType,
    pub(super) layout: Layout,
}

impl HostTensor {
    /// A view of this shape, in a storage that is filled with values drawn from `rng` and is a few elements longer than the view.
    pub(super) fn new(rng: &mut Random, dtype: DType, dims: &[usize], view: View, pool: Pool) -> HostTensor {
        let layout = view.layout(dims);
        let elements = layout.span_elements().end + 3;
        HostTensor { storage: (0..elements).map(|_| draw(|end| rng.below(end), dtype, pool)).collect(), dtype, layout }
    }

    /// The bytes of the storage, in the machine's order.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.storage.iter().flat_map(|&value| encode(self.dtype, value)).collect()
    }

    /// The same view, of a storage with these bytes.
    pub(super) fn read(&self, bytes: &[u8]) -> HostTensor {
        let storage = bytes.chunks_exact(self.dtype.size()).map(|element| decode(self.dtype, element)).collect();
        HostTensor { storage, ..*self }
    }

    /// The index in the storage of each element, row-major.
    pub(super) fn places(&self) -> Vec<usize> {
        let place = |index: &Vec<usize>| {
            let steps = index.iter().zip(self.layout.strides());
            self.layout.offset() + steps.map(|(i, stride)| i * stride).sum::<usize>()
        };
        indices(self.layout.shape().dims()).iter().map(place).collect()
    }

    /// The elements of the view.
    pub(super) fn dense(&self) -> Dense {
        Dense {
            dtype: self.dtype,
            dims: self.layout.shape().dims().to_vec(),
            values: self.places().into_iter().map(|place| self.storage[place]).collect(),
        }
    }

    /// The storage after `dense`, of the same shape, was written to the view. The bytes are exact for every dtype but floats that may be
    /// NaN, which may have any NaN bits.
    pub(super) fn overwritten(&self, dense: &Dense) -> HostTensor {
        let mut after = self.clone();
        for (place, &value) in self.places().into_iter().zip(&dense.values) {
            after.storage[place] = value;
        }
        after
    }

    /// Are all bytes outside of the view the same in `bytes` as in this storage?
    pub(super) fn same_outside(&self, bytes: &[u8]) -> bool {
        let size = self.dtype.size();
        let mut inside = vec![false; self.storage.len()];
        self.places().into_iter().for_each(|place| inside[place] = true);
        let own = self.bytes();
        own.len() == bytes.len() && (0..own.len()).all(|byte| inside[byte / size] || own[byte] == bytes[byte])
    }
}

pub(super) fn encode(dtype: DType, value: Value) -> Vec<u8> {
    match dtype {
        DType::F32 => (value.float() as f32).to_ne_bytes().to_vec(),
        DType::F64 => value.float().to_ne_bytes().to_vec(),
        // Through f32, which holds all values of both dtypes.
        DType::F16 => f16::from_f32(value.float() as f32).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(value.float() as f32).to_ne_bytes().to_vec(),
        DType::I8 => (value.int() as i8).to_ne_bytes().to_vec(),
        DType::I16 => (value.int() as i16).to_ne_bytes().to_vec(),
        DType::I32 => (value.int() as i32).to_ne_bytes().to_vec(),
        DType::I64 => (value.int() as i64).to_ne_bytes().to_vec(),
        DType::U8 => (value.int() as u8).to_ne_bytes().to_vec(),
        DType::U16 => (value.int() as u16).to_ne_bytes().to_vec(),
        DType::U32 => (value.int() as u32).to_ne_bytes().to_vec(),
        DType::U64 => (value.int() as u64).to_ne_bytes().to_vec(),
        DType::Bool => vec![value.int() as u8],
    }
}

fn decode(dtype: DType, element: &[u8]) -> Value {
    let two = || element.try_into().expect("two bytes");
    let four = || element.try_into().expect("four bytes");
    let eight = || element.try_into().expect("eight bytes");
    match dtype {
        DType::F32 => Value::Float(f32::from_ne_bytes(four()).into()),
        DType::F64 => Value::Float(f64::from_ne_bytes(eight())),
        DType::F16 => Value::Float(f16::from_ne_bytes(two()).into()),
        DType::BF16 => Value::Float(bf16::from_ne_bytes(two()).into()),
        DType::I8 => Value::Int(i8::from_ne_bytes([element[0]]).into()),
        DType::I16 => Value::Int(i16::from_ne_bytes(two()).into()),
        DType::I32 => Value::Int(i32::from_ne_bytes(four()).into()),
        DType::I64 => Value::Int(i64::from_ne_bytes(eight()).into()),
        DType::U8 => Value::Int(u8::from_ne_bytes([element[0]]).into()),
        DType::U16 => Value::Int(u16::from_ne_bytes(two()).into()),
        DType::U32 => Value::Int(u32::from_ne_bytes(four()).into()),
        DType::U64 => Value::Int(u64::from_ne_bytes(eight()).into()),
        DType::Bool => Value::Int(element[0].into()),
    }
}
