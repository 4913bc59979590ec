//! The expected values of the tensors of a list: each instruction runs to its end before the next, over plain vectors.

use streamvm::instructions::Role;
use streamvm::{Access, Op};

use super::drawn::{Declared, Drawn, Scene, What};

/// An element that was never written, or that was computed from such an element.
const UNKNOWN: f32 = f32::NAN;

/// The values of all storages. The model has no places, streams or devices.
pub struct Model<'s> {
    scene: &'s Scene,
    /// By owner; `None` before the first write and after a release.
    storages: Vec<Option<Vec<f32>>>,
}

impl<'s> Model<'s> {
    /// A model in which no storage is written.
    pub fn new(scene: &'s Scene) -> Model<'s> {
        Model { scene, storages: vec![None; scene.tensors.len()] }
    }

    /// Was the storage of an owner written, and not released since?
    pub fn is_written(&self, owner: usize) -> bool {
        self.storages[owner].is_some()
    }

    /// Are the found elements of an owner possible? All elements that the model knows must be equal.
    pub fn may_hold(&self, owner: usize, elements: &[f32]) -> bool {
        let alike = |(known, found): (&f32, &f32)| known.is_nan() || known == found;
        let known = self.storages[owner].as_deref().unwrap_or_default();
        known.len() == elements.len() && known.iter().zip(elements).all(alike)
    }

    /// The values of the storage of an owner, as text.
    pub fn told(&self, owner: usize) -> String {
        format!("{:?}", self.storages[owner])
    }

    /// Runs an instruction that was accepted.
    pub fn run(&mut self, drawn: &Drawn) {
        let Drawn { what, uses, .. } = drawn;
        let inputs: Vec<Vec<f32>> =
            uses.iter().filter(|(_, access)| *access == Access::Read).map(|(tensor, _)| self.read(*tensor)).collect();
        match what {
            What::Call(op) => self.write(uses[uses.len() - 1].0, |at| computed(*op, &inputs, at)),
            What::Copy => self.write(uses[1].0, |at| inputs[0][at]),
            What::Fill(value) => self.write(uses[0].0, |_| *value),
            What::Release => self.storages[uses[0].0] = None,
            What::Function(
                Role::Function | Role::Host | Role::Access | Role::Program | Role::ProgramWithCode | Role::Blocks,
            ) => {
                let sum = sum(inputs.iter().flatten());
                for (tensor, access) in uses.iter().filter(|(_, access)| *access != Access::Read) {
                    let before = self.read(*tensor);
                    let updates = *access == Access::ReadWrite;
                    self.write(*tensor, |at| function(sum, if updates { before[at] } else { 0.0 }));
                }
            }
            What::Allocate | What::Touch | What::Function(Role::Cuda | Role::Push) => {}
            What::Barrier(_) | What::GlobalSync => {}
            What::Record(_) | What::Wait { .. } | What::Begin | What::End => {}
        }
    }

    fn read(&self, tensor: usize) -> Vec<f32> {
        let places = self.places(tensor);
        match &self.storages[self.scene.owner(tensor)] {
            Some(storage) => places.map(|at| storage[at]).collect(),
            None => places.map(|_| UNKNOWN).collect(),
        }
    }

    fn write(&mut self, tensor: usize, value: impl Fn(usize) -> f32) {
        let owner = self.scene.owner(tensor);
        let places: Vec<usize> = self.places(tensor).collect();
        let elements = self.scene.tensors[owner].elements;
        let storage = self.storages[owner].get_or_insert_with(|| vec![UNKNOWN; elements]);
        places.into_iter().enumerate().for_each(|(at, place)| storage[place] = value(at));
    }

    fn places(&self, tensor: usize) -> impl Iterator<Item = usize> + use<> {
        let Declared { stride, offset, .. } = self.scene.tensors[tensor];
        (0..self.scene.shape(tensor)).map(move |at| offset + at * stride)
    }
}

/// Computes one element of the output of a kernel.
fn computed(op: Op, inputs: &[Vec<f32>], at: usize) -> f32 {
    match op {
        Op::Neg => -inputs[0][at],
        Op::Relu if inputs[0][at] < 0.0 => 0.0,
        Op::Relu => inputs[0][at],
        Op::Add => inputs[0][at] + inputs[1][at],
        Op::Mul => inputs[0][at] * inputs[1][at],
        other => unreachable!("{other} is not drawn"),
    }
}

/// Computes one element that a drawn function writes, from the sum of the elements that it reads and the old element. Values are kept
/// small, so that all f32 arithmetic is exact.
pub(super) fn function(sum: f32, before: f32) -> f32 {
    (sum + before + 1.0) % 64.0
}

/// The sum of all elements, in order.
pub(super) fn sum<'a>(elements: impl Iterator<Item = &'a f32>) -> f32 {
    elements.fold(0.0, |sum, element| (sum + element) % 64.0)
}
