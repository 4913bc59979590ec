//! Which results drawn programs have: values, feeds and parameters, whole and as views of every kind.

use std::fmt;
use std::ops::AddAssign;

use streamvm::ep::Layout;
use streamvm::program::{Program, ValueRole};
use streamvm::{Error, Tensor};

use crate::Random;
use crate::compiled::ROWS;
use crate::compiled::empties::Empties;

/// Draws results: views of `tensors`, of which the first are feeds and the one at `parameter` is a parameter, and a view without elements. Of
/// some, the tensor itself is a result, too.
///
/// # Errors
/// Those of the engine or of the recording.
pub(super) fn draw(
    draw: &mut Random,
    tensors: &[Tensor],
    parameter: usize,
    empties: &Empties,
) -> Result<Vec<Tensor>, Error> {
    if draw.once_in(8) {
        // A program of one result may be one kernel call, which runs in another way.
        return Ok(vec![view(draw, &tensors[tensors.len() - 1])?]);
    }
    let mut fetched = Vec::new();
    for kind in 0..4 {
        let place = match kind {
            0 => draw.below(parameter + 1),
            1 | 2 => draw.below(tensors.len()),
            _ => tensors.len() - 1,
        };
        let tensor = &tensors[place];
        fetched.push(view(draw, tensor)?);
        if draw.once_in(2) {
            fetched.push(tensor.clone());
        }
    }
    if draw.once_in(2) {
        fetched.push(empties.view(draw)?);
    }
    Ok(fetched)
}

fn view(draw: &mut Random, tensor: &Tensor) -> Result<Tensor, Error> {
    let (kind, axis, from) = (draw.below(8), draw.below(2), draw.below(ROWS));
    let to = from + 1 + draw.below(ROWS - from);
    Ok(match kind {
        0 => tensor.clone(),
        1 | 2 => tensor.permute(&[1, 0])?,
        3 => tensor.slice(axis, from..to)?,
        4 => tensor.slice(axis, from..from + 1)?.broadcast_to(&[ROWS, ROWS])?,
        5 => match tensor.try_reshape([&[ROWS * ROWS][..], &[2, 2 * ROWS], &[ROWS, 1, ROWS]][from % 3])? {
            Some(reshaped) => reshaped,
            None => tensor.clone(),
        },
        6 => tensor.slice(axis, from..to)?.permute(&[1, 0])?,
        _ => tensor.slice(axis, from..from)?,
    })
}

/// How a result lies in its value.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Kind {
    Whole,
    Transposed,
    Reshaped,
    Part,
    Broadcast,
    Empty,
}

impl Kind {
    const NAMES: [&str; 6] = ["whole", "transposed", "reshaped", "parts", "broadcast", "empty"];

    fn of(layout: &Layout, whole: &Layout) -> Kind {
        let repeats = || layout.shape().dims().iter().zip(layout.strides()).any(|(&size, &step)| size > 1 && step == 0);
        if layout.elements() == 0 {
            Kind::Empty
        } else if layout == whole {
            Kind::Whole
        } else if repeats() {
            Kind::Broadcast
        } else if layout.elements() < whole.elements() {
            Kind::Part
        } else if layout.is_contiguous() {
            Kind::Reshaped
        } else {
            Kind::Transposed
        }
    }
}

/// How many results and empty tensors drawn programs had.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub struct Draws {
    /// Results by kind; of feeds, of parameters, and of values that the program computes.
    fetched: [[u64; 6]; 3],
    /// Values without elements.
    empty_values: u64,
    /// Operands of steps that have no elements.
    empty_operands: u64,
    /// Those of these that are not whole values.
    empty_views: u64,
}

impl Draws {
    /// Those of one program.
    pub(super) fn of(program: &Program) -> Draws {
        let mut found = Draws::default();
        for fetch in &program.fetches {
            let value = program.value(fetch.value);
            let role = match value.role {
                ValueRole::Feed(_) => 0,
                ValueRole::Parameter(_) => 1,
                ValueRole::Computed => 2,
            };
            found.fetched[role][Kind::of(&fetch.layout, &Layout::contiguous(value.shape)) as usize] += 1;
        }
        found.empty_values = program.values.iter().filter(|value| value.shape.elements() == 0).count() as u64;
        let operands = program.steps.iter().flat_map(|step| &step.operands);
        for operand in operands.filter(|operand| operand.layout.elements() == 0) {
            found.empty_operands += 1;
            let whole = Layout::contiguous(program.value(operand.value).shape);
            found.empty_views += u64::from(operand.layout != whole);
        }
        found
    }

    /// Whether a step or a result has no elements.
    pub fn has_empties(&self) -> bool {
        self.empty_operands > 0 || self.fetched.iter().any(|kinds| kinds[Kind::Empty as usize] > 0)
    }

    /// The smallest of all counts: with 0, something is not drawn.
    pub fn least(&self) -> u64 {
        let counts = self.fetched.into_iter().flatten();
        counts.chain([self.empty_values, self.empty_operands, self.empty_views]).min().unwrap_or(0)
    }
}

impl AddAssign for Draws {
    fn add_assign(&mut self, other: Draws) {
        self.fetched.iter_mut().flatten().zip(other.fetched.iter().flatten()).for_each(|(sum, more)| *sum += more);
        self.empty_values += other.empty_values;
        self.empty_operands += other.empty_operands;
        self.empty_views += other.empty_views;
    }
}

impl fmt::Display for Draws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (role, counts) in ["feeds", "parameters", "values"].into_iter().zip(self.fetched) {
            let counts: Vec<String> =
                Kind::NAMES.iter().zip(counts).map(|(kind, count)| format!("{count} {kind}")).collect();
            write!(f, "fetched of {role}: {}; ", counts.join(", "))?;
        }
        let Draws { empty_values, empty_operands, empty_views, .. } = self;
        write!(f, "{empty_values} empty values, {empty_operands} empty operands, {empty_views} of them views")
    }
}
