//! Tensors for tests: storage with values drawn from a seed, seen through all kinds of views.

pub(crate) use streamvm_ep::Samples as Pool;
use streamvm_ep::{Access, DType, Layout, Operand, Shape, bf16, f16};

use crate::reference::{Dense, Value, draw, indices};

/// A small generator (SplitMix64, by Steele, Lea and Flood): the same values for the same seed.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// How a tensor lies in its storage.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum View {
    Contiguous,
    /// Axes stored in reverse order.
    Permuted,
    /// Part of a larger storage, with an offset.
    Sliced,
    /// Every other element of each axis.
    Stepped,
    /// Elements repeated along every axis but the last; for inputs.
    Broadcast,
}

pub(crate) const VIEWS: [View; 5] = [View::Contiguous, View::Permuted, View::Sliced, View::Stepped, View::Broadcast];

/// Storage and one view of it.
#[derive(Clone)]
pub(crate) struct Tensor {
    /// Words, so that every element is aligned.
    storage: Vec<u64>,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
}

impl Tensor {
    /// A tensor of this shape, its whole storage filled with values drawn from `rng`.
    pub(crate) fn new(rng: &mut Rng, dtype: DType, dims: &[usize], view: View, pool: Pool) -> Tensor {
        let shape = |dims: &[usize]| Shape::new(dims).unwrap();
        let layout = match view {
            View::Contiguous => Layout::contiguous(shape(dims)),
            View::Permuted => {
                let stored: Vec<usize> = dims.iter().rev().copied().collect();
                let order: Vec<usize> = (0..dims.len()).rev().collect();
                Layout::contiguous(shape(&stored)).permute(&order).unwrap()
            }
            View::Sliced => {
                let stored: Vec<usize> = dims.iter().map(|dim| dim + 2).collect();
                let mut layout = Layout::contiguous(shape(&stored));
                for (axis, &dim) in dims.iter().enumerate() {
                    layout = layout.slice(axis, 1..1 + dim).unwrap();
                }
                layout
            }
            View::Stepped => {
                let doubled: Vec<usize> = dims.iter().map(|dim| dim * 2).collect();
                let dense = Layout::contiguous(shape(&doubled));
                let steps: Vec<usize> = dense.strides().iter().map(|stride| stride * 2).collect();
                Layout::with_strides(shape(dims), &steps, 0).unwrap()
            }
            View::Broadcast => {
                let mut stored = vec![1; dims.len()];
                if let Some(last) = stored.last_mut() {
                    *last = dims[dims.len() - 1];
                }
                let dense = Layout::contiguous(shape(&stored));
                dense.broadcast_to(&shape(dims)).unwrap()
            }
        };
        let elements = layout.span_elements().end + 3;
        let mut tensor = Tensor { storage: vec![0; (elements * dtype.size()).div_ceil(8)], dtype, layout };
        for place in 0..elements {
            tensor.write(place, draw(|end| rng.below(end), dtype, pool));
        }
        tensor
    }

    pub(crate) fn operand(&mut self, access: Access) -> Operand<'static> {
        let base = self.storage.as_mut_ptr().cast::<u8>();
        // SAFETY: the span of the layout lies within the storage, and tests use the operand while
        // the storage is alive and untouched, in one thread.
        unsafe { Operand::new(base, self.dtype, self.layout, access) }
    }

    /// All of its storage as one operand of bytes.
    #[allow(dead_code, reason = "not every test that has tensors has buffers")]
    pub(crate) fn storage(&mut self, access: Access) -> Operand<'static> {
        let layout = Layout::contiguous(Shape::new(&[self.storage.len() * 8]).unwrap());
        // SAFETY: the bytes are those of the storage; tests use the operand while it is alive and untouched, in one thread.
        unsafe { Operand::new(self.storage.as_mut_ptr().cast(), DType::U8, layout, access) }
    }

    fn bytes(&self) -> Vec<u8> {
        let words = self.storage.iter();
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn write(&mut self, place: usize, value: Value) {
        let size = self.dtype.size();
        let bytes: Vec<u8> = match (self.dtype, value) {
            (DType::F32, Value::Float(x)) => (x as f32).to_ne_bytes().to_vec(),
            (DType::F64, Value::Float(x)) => x.to_ne_bytes().to_vec(),
            // By way of f32, which has what both have.
            (DType::F16, Value::Float(x)) => f16::from_f32(x as f32).to_ne_bytes().to_vec(),
            (DType::BF16, Value::Float(x)) => bf16::from_f32(x as f32).to_ne_bytes().to_vec(),
            (DType::I8, Value::Int(x)) => (x as i8).to_ne_bytes().to_vec(),
            (DType::I16, Value::Int(x)) => (x as i16).to_ne_bytes().to_vec(),
            (DType::I32, Value::Int(x)) => (x as i32).to_ne_bytes().to_vec(),
            (DType::I64, Value::Int(x)) => (x as i64).to_ne_bytes().to_vec(),
            (DType::U8, Value::Int(x)) => (x as u8).to_ne_bytes().to_vec(),
            (DType::U16, Value::Int(x)) => (x as u16).to_ne_bytes().to_vec(),
            (DType::U32, Value::Int(x)) => (x as u32).to_ne_bytes().to_vec(),
            (DType::U64, Value::Int(x)) => (x as u64).to_ne_bytes().to_vec(),
            (DType::Bool, Value::Int(x)) => vec![x as u8],
            (dtype, value) => panic!("{value:?} is no {dtype}"),
        };
        for (i, byte) in bytes.into_iter().enumerate() {
            let at = place * size + i;
            let mut word = self.storage[at / 8].to_ne_bytes();
            word[at % 8] = byte;
            self.storage[at / 8] = u64::from_ne_bytes(word);
        }
    }

    fn read(&self, bytes: &[u8], place: usize) -> Value {
        let size = self.dtype.size();
        let element = &bytes[place * size..(place + 1) * size];
        match self.dtype {
            DType::F32 => Value::Float(f32::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::F64 => Value::Float(f64::from_ne_bytes(element.try_into().unwrap())),
            DType::F16 => Value::Float(f16::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::BF16 => Value::Float(bf16::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::I8 => Value::Int(i8::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::I16 => Value::Int(i16::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::I32 => Value::Int(i32::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::I64 => Value::Int(i64::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::U8 => Value::Int(u8::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::U16 => Value::Int(u16::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::U32 => Value::Int(u32::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::U64 => Value::Int(u64::from_ne_bytes(element.try_into().unwrap()).into()),
            DType::Bool => Value::Int(element[0].into()),
        }
    }

    /// Places in the storage of the elements, row-major.
    fn places(&self) -> Vec<usize> {
        indices(self.layout.shape().dims())
            .iter()
            .map(|index| {
                let steps = index.iter().zip(self.layout.strides());
                self.layout.offset() + steps.map(|(i, stride)| i * stride).sum::<usize>()
            })
            .collect()
    }

    pub(crate) fn dense(&self) -> Dense {
        let bytes = self.bytes();
        Dense {
            dtype: self.dtype,
            dims: self.layout.shape().dims().to_vec(),
            values: self.places().into_iter().map(|place| self.read(&bytes, place)).collect(),
        }
    }

    /// Are all bytes outside the view as in `before`?
    pub(crate) fn same_outside(&self, before: &Tensor) -> bool {
        let size = self.dtype.size();
        let mut inside = vec![false; self.storage.len() * 8];
        for place in self.places() {
            inside[place * size..(place + 1) * size].fill(true);
        }
        let (now, then) = (self.bytes(), before.bytes());
        (0..now.len()).all(|i| inside[i] || now[i] == then[i])
    }

    pub(crate) fn same_bytes(&self, other: &Tensor) -> bool {
        self.storage == other.storage
    }
}
