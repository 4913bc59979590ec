//! Tensors without elements in drawn programs: given ones, results, and views of these and of other tensors, some at an offset.

use streamvm::{DeviceId, Error, InstructionsBuilder, Place, Tensor};

use crate::Random;
use crate::compiled::blocks::By;
use crate::compiled::{ROWS, functions};

/// The tensors of a program that have an axis of size 0, of shape `[0, 4]` or `[4, 0]`.
pub(super) struct Empties {
    /// A feed first, which nothing may write.
    all: Vec<Tensor>,
}

impl Empties {
    /// `given` is a feed and a parameter.
    pub(super) fn new(given: &[Tensor]) -> Empties {
        Empties { all: given.to_vec() }
    }

    /// One of them, or a view of one: a slice along the other axis, which may begin at an offset, and may be transposed.
    pub(super) fn view(&self, draw: &mut Random) -> Result<Tensor, Error> {
        let tensor = draw.pick(&self.all).clone();
        Ok(part(draw, tensor)?)
    }

    /// Makes a call over empty tensors, or over an empty part of `x`. Returns zeros of shape `[4, 4]`, if the call gives such.
    ///
    /// # Errors
    /// Those of the engine or of the recording.
    pub(super) fn draw(
        &mut self,
        draw: &mut Random,
        x: &Tensor,
        devices: &[DeviceId],
        by: By<'_>,
    ) -> Result<Option<Tensor>, Error> {
        let (axis, at, kind) = (draw.below(2), draw.below(ROWS + 1), draw.below(8));
        let none = draw.pick(&self.all).clone();
        let written = self.all[1 + draw.below(self.all.len() - 1)].clone();
        let Place::Device(there) = written.place() else { return Ok(None) };
        let new = match kind {
            0 => x.slice(axis, at..at)?.neg()?,
            1 => none.to(*draw.pick(devices))?,
            2 => {
                // A sum over no element, and a product over none, are zeros.
                let none = x.slice(1, at..at)?;
                let zeros = if at % 2 == 0 { none.sum(&[1])? } else { none.matmul(&x.slice(0, at..at)?)? };
                return Ok(Some(zeros));
            }
            3 => {
                let part = part(draw, written)?;
                let mut builder = InstructionsBuilder::new();
                builder.fill(&part, 7)?;
                by.submit(builder.finish())?;
                return Ok(None);
            }
            4 => {
                // It is carried from round to round.
                let (round, most) = (by.full(there, 0)?, by.full(there, 2)?);
                let goes_on = round.lt(&most)?;
                by.while_true(&goes_on, || {
                    written.copy_from(&(&written + &written)?)?;
                    round.copy_from(&(&round + 1)?)?;
                    goes_on.copy_from(&round.lt(&most)?)
                })?;
                return Ok(None);
            }
            5 => {
                let device = functions::host_of(there);
                if device != there {
                    return Ok(None);
                }
                let rows = written.slice(0, 0..written.shape().dims()[0].min(at))?;
                by.call_fn_on_workers("fills none", device, vec![rows.update()], |context| {
                    match context.writes.take::<i32>(0)?.len() {
                        0 => Ok(()),
                        found => Err(format!("an empty tensor has {found} elements").into()),
                    }
                })?;
                return Ok(None);
            }
            _ => {
                let view = part(draw, none)?;
                (&view + &view)?
            }
        };
        // Of the shapes that all begin with, so that the list has no other ones.
        if new.shape().dims().iter().all(|size| [0, ROWS].contains(size)) {
            self.all.push(new);
        }
        Ok(None)
    }
}

fn part(draw: &mut Random, tensor: Tensor) -> Result<Tensor, Error> {
    let (from, to, kind) = (draw.below(ROWS), 1 + draw.below(ROWS), draw.below(4));
    let axis = usize::from(tensor.shape().dims()[0] == 0);
    Ok(match kind {
        0 => tensor,
        1 => tensor.permute(&[1, 0])?,
        _ if from < to => tensor.slice(axis, from..to)?,
        _ => tensor.slice(1 - axis, 0..0)?,
    })
}
