//! Empty tensors and fetched views of drawn programs.

use streamvm::program::{Port, Program};
use streamvm::{DType, Error, Layout, Place, Tensor};

use crate::Random;
use crate::compiled::blocks::By;
use crate::compiled::{ROWS, functions};

/// `x` plus the sum of a tensor without elements, which is zero. The tensor is computed from empty parts of `x` and `y`, which begin anywhere, and
/// may then be cut again, along the axis that is not empty.
pub(super) fn plus_nothing(draw: &mut Random, x: &Tensor, y: &Tensor, by: By<'_>) -> Result<Tensor, Error> {
    let (axis, at) = (draw.below(2), draw.below(ROWS + 1));
    let part = |tensor: &Tensor| tensor.slice(axis, at..at);
    let mut nothing = match draw.below(3) {
        0 => (&part(x)? + &part(y)?)?,
        1 => part(x)?.cast(DType::F32)?.cast(DType::I32)?,
        _ => part(x)?.permute(&[1, 0])?.neg()?.permute(&[1, 0])?,
    };
    if draw.once_in(2) {
        nothing = nothing.slice(1 - axis, 1..3)?.neg()?;
    }
    if let Place::Device(device) = x.place()
        && draw.once_in(3)
        && functions::host_of(device) == device
    {
        by.call_fn_on_workers("gets nothing", device, vec![nothing.update()], |context| {
            match context.writes.take::<i32>(0)?.len() {
                0 => Ok(()),
                found => Err(format!("an empty tensor has {found} elements").into()),
            }
        })?;
    }
    x + &nothing.sum(&[])?
}

/// Adds to `fetched` views of values, of feeds and of the parameter, and at times also the whole value of a view. At times all that is left is one view:
/// a program of one result may be one kernel call, which runs in another way.
pub(super) fn fetched_also(
    draw: &mut Random,
    tensors: &[Tensor],
    empty: bool,
    fetched: &mut Vec<Tensor>,
) -> Result<(), Error> {
    const GIVEN: usize = 3;
    if draw.once_in(8) {
        let last = view(draw, &tensors[tensors.len() - 1], empty)?;
        *fetched = vec![last];
        return Ok(());
    }
    for range in [0..tensors.len(), 0..GIVEN] {
        let whole = &tensors[range.start + draw.below(range.len())];
        fetched.push(view(draw, whole, empty)?);
        if draw.once_in(3) {
            fetched.push(whole.clone());
        }
    }
    Ok(())
}

/// A view of a square matrix; without elements at times, if there may be `empty` ones.
fn view(draw: &mut Random, whole: &Tensor, empty: bool) -> Result<Tensor, Error> {
    let (axis, from) = (draw.below(2), draw.below(ROWS));
    let to = from + 1 + draw.below(ROWS - from);
    Ok(match draw.below(if empty { 6 } else { 5 }) {
        0 | 1 => whole.permute(&[1, 0])?,
        2 => whole.slice(axis, from..to)?,
        3 => whole.slice(axis, from..from + 1)?.broadcast_to(whole.shape().dims())?,
        4 => whole.reshape(&[1, whole.layout().elements()])?,
        _ => whole.slice(axis, from..from)?,
    })
}

/// What a program has of views and of empty tensors.
#[derive(Copy, Clone, Default, Debug)]
pub struct Views {
    /// Fetches that are not whole values in their order.
    pub fetched: u64,
    /// Operands of steps and fetches without elements.
    pub empty: u64,
}

impl Views {
    pub(super) fn of(program: &Program) -> Views {
        let is_view = |port: &&Port| port.layout != Layout::contiguous(program.value(port.value).shape);
        let operands = program.steps.iter().flat_map(|step| &step.operands).map(|operand| &*operand.layout);
        let layouts = operands.chain(program.fetches.iter().map(|port| &port.layout));
        Views {
            fetched: program.fetches.iter().filter(is_view).count() as u64,
            empty: layouts.filter(|layout| layout.elements() == 0).count() as u64,
        }
    }

    pub(super) fn add(&mut self, other: Views) {
        self.fetched += other.fetched;
        self.empty += other.empty;
    }
}
