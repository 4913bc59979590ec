//! [`Running`]: a group as the functions of its collectives use it, when they run.

use std::sync::{Arc, Mutex, PoisonError};

use streamvm::ep::{Operand, Operation, Unfinished};
use streamvm::{DType, FnContext, FnError};

use crate::draft::Ends;
use crate::nccl::Nccl;
use crate::order::{Asking, Begin};
use crate::transport::{Communicator, Piece, RankError, Staged, Transfer, Verb, without_line};

/// This rank's end of a group.
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) communicator: Arc<dyn Communicator>,
    /// The communicator once more, if the group's collectives run on a GPU.
    nccl: Option<Arc<Nccl>>,
    /// Each collective first checks that all ranks call the same one.
    asks: bool,
    /// The lanes on which a collective is under way.
    active: Mutex<Vec<u32>>,
}

/// A collective as its function carries it.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) verb: Verb,
    pub(crate) dtype: DType,
    pub(crate) mean: bool,
    /// With the shapes and the caller's line, for errors.
    pub(crate) text: String,
    /// Without either: the name of a step of a program, whose runs may have other shapes.
    pub(crate) step: String,
}

impl Call {
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.verb, Verb::Send(_) | Verb::Receive(_))
    }

    /// The elements that one tensor has before and after the collective, in a group of `size` ranks, if `elements` is what [`Ends`] has. `None` if they do not divide among
    /// the ranks.
    fn elements(&self, elements: usize, size: usize) -> Option<(usize, usize)> {
        let divides = elements.is_multiple_of(size);
        match self.verb {
            Verb::AllGather | Verb::Gather(_) => Some((elements, elements * size)),
            Verb::ReduceScatter(_) => divides.then(|| (elements, elements / size)),
            Verb::AllToAll => divides.then_some((elements, elements)),
            Verb::Scatter(_) => Some((elements * size, elements)),
            _ => Some((elements, elements)),
        }
    }

    /// [`Transfer::count`] over these tensors.
    fn count(&self, pieces: &[Piece], size: usize) -> usize {
        let first = pieces.first().map_or(0, |piece| piece.elements);
        match self.verb {
            Verb::AllReduce(_) => pieces.iter().map(|piece| piece.elements).sum(),
            Verb::ReduceScatter(_) | Verb::AllToAll => first / size,
            _ => first,
        }
    }

    /// The same call over tensors of other shapes than its text says.
    fn of_other_shapes(&self, pieces: &[Piece]) -> Call {
        let elements: usize = pieces.iter().map(|piece| piece.elements).sum();
        let what = without_line(&self.text);
        let text = format!("{what} with {elements} elements{}", &self.text[what.len()..]);
        Call { text, ..self.clone() }
    }
}

impl Running {
    pub(crate) fn new(
        name: String,
        communicator: Arc<dyn Communicator>,
        nccl: Option<Arc<Nccl>>,
        asks: bool,
    ) -> Running {
        let asks = asks && !communicator.capabilities().checks_order;
        Running { name, communicator, nccl, asks, active: Mutex::default() }
    }

    /// Starts a collective, over the operands of its function.
    ///
    /// # Errors
    /// Always: the answer that an operation has been started is one, too. Or the operands are not those that the collective was made for, or the group is in use.
    pub(crate) fn start(
        self: &Arc<Self>,
        context: &mut FnContext<'_>,
        mut call: Call,
        ends: &[Ends],
        lane: u32,
    ) -> Result<(), FnError> {
        if context.skipped {
            let what = format!(
                "rank {} has skipped `{}`, because what it reads has failed",
                self.communicator.rank(),
                call.text
            );
            self.communicator.give_up(&RankError::Broken(what));
            return Ok(());
        }
        let raw = context.raw;
        let operands = match raw {
            Some(raw) => raw.operands,
            None => context.take_all()?,
        };
        let size = self.communicator.size();
        // The code of a step may be called with other operands than it was made for, and those of a program with bounded sizes have other shapes in each run.
        let address = |at: Option<usize>, elements: usize, writes: bool| -> Result<*mut u8, FnError> {
            let Some(at) = at else { return Ok(std::ptr::null_mut()) };
            let fits = |operand: &&Operand<'_>| {
                let is_like = operand.dtype() == call.dtype && operand.layout().elements() == elements;
                is_like && operand.is_contiguous() && (!writes || operand.access().writes())
            };
            let found = operands.get(at).filter(fits).map(Operand::ptr);
            found.ok_or_else(|| format!("operand {at} does not fit `{}`", call.text).into())
        };
        let mut pieces = Vec::with_capacity(ends.len());
        for ends in ends {
            let of = if matches!(call.verb, Verb::Scatter(_)) { ends.output } else { ends.input.or(ends.output) };
            let elements = of.and_then(|at| operands.get(at)).map_or(0, |operand| operand.layout().elements());
            let Some((read, written)) = call.elements(elements, size) else {
                return Err(format!("{elements} elements do not divide among {size} ranks: `{}`", call.text).into());
            };
            let (input, output) = (address(ends.input, read, false)?, address(ends.output, written, true)?);
            pieces.push(Piece { input: input.cast_const(), output, elements });
        }
        let count = call.count(&pieces, size);
        if ends.iter().zip(&pieces).any(|(ends, piece)| ends.elements != piece.elements) {
            call = call.of_other_shapes(&pieces);
        }
        let group = self.communicator.clone();
        let (of, later) = (group.clone(), call.clone());
        let begins: Begin = match (&self.nccl, raw) {
            (Some(nccl), Some(raw)) => {
                let (nccl, is) = (nccl.clone(), (call.verb, call.dtype, count, call.mean));
                let launch = nccl.launch(raw, is, pieces)?;
                // SAFETY: as in `begin`; the engine looks at the operation until the device has passed its commands.
                Box::new(move || unsafe { nccl.start(launch) })
            }
            (None, None) => Box::new(move || begin(&*of, &later, count, &pieces)),
            _ => return Err(format!("`{}` has been moved to another device", call.text).into()),
        };
        let asks = self.asks && !call.is_message();
        let active = Some(Active::enter(self, lane)?);
        let operation = if asks { Box::new(Asking::start(&group, &call.text, begins)?) } else { begins()? };
        Err(Box::new(Unfinished(Box::new(OnLane { operation, active }))))
    }
}

/// While this lives, a collective is under way on a lane of a group, or is being queued on the stream of a device.
struct Active {
    group: Arc<Running>,
    lane: u32,
}

impl Active {
    /// # Errors
    /// Another one is: two engines use the group.
    fn enter(group: &Arc<Running>, lane: u32) -> Result<Active, RankError> {
        let mut active = group.active.lock().unwrap_or_else(PoisonError::into_inner);
        if active.contains(&lane) {
            let what = format!(
                "two engines use the group {} at once; give each engine a group of its own (`Group::subgroup`)",
                group.name
            );
            return Err(RankError::Argument(what));
        }
        active.push(lane);
        Ok(Active { group: group.clone(), lane })
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.group.active.lock().unwrap_or_else(PoisonError::into_inner).retain(|lane| *lane != self.lane);
    }
}

/// An operation, with the lane that it occupies.
struct OnLane {
    operation: Box<dyn Operation>,
    active: Option<Active>,
}

impl Operation for OnLane {
    fn poll(&mut self) -> Result<bool, FnError> {
        let is_over = self.operation.poll();
        if let Ok(true) = is_over {
            self.active = None;
        }
        is_over
    }

    fn look(&mut self, has_passed: bool) -> Result<(), FnError> {
        self.operation.look(has_passed)
    }
}

/// Starts a collective over the operands of its function, whose memory the engine keeps until the operation that the function answers with is over.
fn begin(
    group: &dyn Communicator,
    call: &Call,
    count: usize,
    pieces: &[Piece],
) -> Result<Box<dyn Operation>, RankError> {
    let Call { verb, dtype, mean, ref text, .. } = *call;
    if matches!(verb, Verb::AllReduce(_) | Verb::Reduce(..) | Verb::ReduceScatter(_)) {
        // SAFETY: the operands have the elements, are aligned and contiguous; the engine keeps their memory, and orders all other uses of it after this
        // instruction, until the operation is over.
        return unsafe { Staged::start(group, (verb, dtype), pieces, mean, text.clone()) };
    }
    let nothing = (std::ptr::null(), std::ptr::null_mut());
    let (input, output) = pieces.first().map_or(nothing, |piece| (piece.input, piece.output));
    // SAFETY: as above.
    unsafe { group.start(Transfer { verb, dtype, count, input, output, call: text.clone() }) }
}
