//! [`Group`]: ranks that communicate, and the collectives over them.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use streamvm::ep::Unfinished;
use streamvm::instructions::BuilderScope;
use streamvm::{DType, DeviceId, FnContext, FnError, InstructionsBuilder, MemoryKind, Place, Shape, Tensor, Use};

use crate::error::{Error, RankError};
use crate::issue::Issue;
use crate::ranks::Session;
use crate::reduction::Reduction;
use crate::transport::{Capabilities, Communicator, Piece, Staged, Transfer, Verb};

/// Collectives run on memory of the host.
const CPU: DeviceId = DeviceId::cpu(0);

/// Ranks that communicate. Clones are the same group. It may be used by several engines of a process and from any thread, but the collectives of a group must be
/// issued in the same order on all of its ranks; see [the crate's page](crate).
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    communicator: Box<dyn Communicator>,
    session: Arc<Session>,
    /// The lane of the group's collective stream.
    lane: u32,
    /// The lanes of messages, by the other rank and whether it sends them.
    messages: Mutex<Vec<(usize, bool, u32)>>,
    /// The members of subgroups made so far, with the number of times: members know no other subgroups than their own, so each list is counted by itself.
    subgroups: Mutex<Vec<(Vec<usize>, u64)>>,
}

/// Where the elements of one tensor are among the operands of the function.
#[derive(Copy, Clone)]
struct Ends {
    input: Option<usize>,
    output: Option<usize>,
    elements: usize,
}

/// A collective as its function carries it.
struct Call {
    verb: Verb,
    dtype: DType,
    /// [`Transfer::count`].
    count: usize,
    mean: bool,
    /// With the caller's line, for errors.
    text: String,
}

impl Group {
    pub(crate) fn new(name: String, communicator: Box<dyn Communicator>, session: Arc<Session>) -> Group {
        let (lane, messages, subgroups) = (session.next_lane(), Mutex::default(), Mutex::default());
        Group { inner: Arc::new(Inner { name, communicator, session, lane, messages, subgroups }) }
    }

    /// The number of this rank in the group, from 0.
    pub fn rank(&self) -> usize {
        self.inner.communicator.rank()
    }

    /// The number of ranks in the group.
    pub fn size(&self) -> usize {
        self.inner.communicator.size()
    }

    /// The name of the group, as instructions show it: `world`, or the members of a subgroup.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What the backend of the group can do.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.communicator.capabilities()
    }

    /// The group of some ranks of this group, numbered in the order of `members`. Each of the members calls this, and no other rank. Blocks until all members have
    /// called it.
    ///
    /// # Errors
    /// [`RankError::Argument`] if `members` is empty, names a rank twice or one that is not there, or leaves this rank out; the errors of the backend.
    pub fn subgroup(&self, members: &[usize]) -> Result<Group, RankError> {
        let refused = |what: String| Err(RankError::Argument(format!("a subgroup of {} with the ranks {members:?}: {what}", self.name())));
        if let Some(unknown) = members.iter().find(|&&rank| rank >= self.size()) {
            return refused(format!("there is no rank {unknown}; the group has the ranks 0 to {}", self.size() - 1));
        }
        if let Some(twice) = members.iter().enumerate().find(|(at, rank)| members[..*at].contains(rank)) {
            return refused(format!("rank {} is named twice", twice.1));
        }
        if !members.contains(&self.rank()) {
            return refused(format!("this is rank {}, which is not among them; only members call this", self.rank()));
        }
        let serial = self.serial_of(members);
        let communicator = self.inner.communicator.subgroup(members, serial)?;
        let name = members.iter().map(usize::to_string).collect::<Vec<_>>().join("+");
        Ok(Group::new(format!("{}:{name}", self.name()), communicator, self.inner.session.clone()))
    }

    /// The group of the ranks of this group that are still there, after others were lost. Each of them calls this. Blocks until they all have.
    ///
    /// # Errors
    /// The backend does not survive the loss of a rank ([`Capabilities`]), or a rank does not come in time.
    pub fn shrink(&self) -> Result<Group, RankError> {
        let serial = self.serial_of(&[]);
        let communicator = self.inner.communicator.shrink(serial)?;
        let name = format!("{}-{}", self.name(), communicator.size());
        Ok(Group::new(name, communicator, self.inner.session.clone()))
    }

    /// The number of earlier subgroups with these members.
    fn serial_of(&self, members: &[usize]) -> u64 {
        let mut known = self.inner.subgroups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = known.iter_mut().find(|(known, _)| known == members) {
            *count += 1;
            return *count;
        }
        known.push((members.to_vec(), 0));
        0
    }

    /// Combines `x` of all ranks, element by element, and returns the result, which all ranks get. All ranks pass the same shape and dtype.
    ///
    /// # Errors
    /// The reduction does not take the dtype ([`Reduction`]); those of [`Issue`].
    #[track_caller]
    pub fn all_reduce<I: Issue>(&self, issuer: I, x: &Tensor, by: Reduction) -> Result<Tensor, Error> {
        let mut b = InstructionsBuilder::new();
        let input = contiguous(&mut b, x)?;
        let output = new(x.dtype(), x.dims())?;
        let call = self.call(Verb::AllReduce(by.fold()), "all_reduce", Some(by), &[x])?;
        let ends = Ends { input: Some(0), output: Some(1), elements: x.numel() };
        self.emit(&mut b, call, vec![input.read(), output.write()], vec![ends])?;
        self.back(b, issuer, &output, x.place())
    }

    /// Combines tensors of all ranks in place, as one collective: all ranks pass the same shapes, in the same order. All tensors have one dtype, and none
    /// shares bytes with another one.
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce); there is no tensor, or their dtypes differ.
    #[track_caller]
    pub fn all_reduce_in_place<I: Issue>(&self, issuer: I, tensors: &[&Tensor], by: Reduction) -> Result<I::Issued, Error> {
        let mut b = InstructionsBuilder::new();
        let mut parts = Vec::with_capacity(tensors.len());
        for x in tensors {
            parts.push(contiguous(&mut b, x)?);
        }
        let mut call = self.call(Verb::AllReduce(by.fold()), "all_reduce", Some(by), tensors)?;
        call.count = tensors.iter().map(|x| x.numel()).sum();
        let ends = parts.iter().enumerate();
        let ends = ends.map(|(at, x)| Ends { input: Some(at), output: Some(at), elements: x.numel() }).collect();
        self.emit(&mut b, call, parts.iter().map(Tensor::update).collect(), ends)?;
        for (part, x) in parts.iter().zip(tensors) {
            copy_back(&mut b, part, x)?;
        }
        Ok(issuer.issue(b.finish())?)
    }

    /// Combines `x` of all ranks, as [`all_reduce`](Group::all_reduce), for `root` alone, which gets the result; the others get `None`.
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce); there is no rank `root`.
    #[track_caller]
    pub fn reduce<I: Issue>(&self, issuer: I, x: &Tensor, by: Reduction, root: usize) -> Result<Option<Tensor>, Error> {
        let mut b = InstructionsBuilder::new();
        let input = contiguous(&mut b, x)?;
        let call = self.call(Verb::Reduce(by.fold(), self.peer("reduce", root)?), "reduce", Some(by), &[x])?;
        let ends = Ends { input: Some(0), output: None, elements: x.numel() };
        if root != self.rank() {
            self.emit(&mut b, call, vec![input.read()], vec![ends])?;
            issuer.issue(b.finish())?;
            return Ok(None);
        }
        let output = new(x.dtype(), x.dims())?;
        self.emit(&mut b, call, vec![input.read(), output.write()], vec![Ends { output: Some(1), ..ends }])?;
        self.back(b, issuer, &output, x.place()).map(Some)
    }

    /// Writes `x` of rank `root` into `x` of all others. All ranks pass the same shape and dtype.
    ///
    /// # Errors
    /// There is no rank `root`; `x` of another rank broadcasts; those of [`Issue`].
    #[track_caller]
    pub fn broadcast<I: Issue>(&self, issuer: I, x: &Tensor, root: usize) -> Result<I::Issued, Error> {
        let mut b = InstructionsBuilder::new();
        let call = self.call(Verb::Broadcast(self.peer("broadcast", root)?), "broadcast", None, &[x])?;
        if root == self.rank() {
            let input = contiguous(&mut b, x)?;
            let ends = Ends { input: Some(0), output: None, elements: x.numel() };
            self.emit(&mut b, call, vec![input.read()], vec![ends])?;
        } else {
            let output = room(x)?;
            let ends = Ends { input: None, output: Some(0), elements: x.numel() };
            self.emit(&mut b, call, vec![output.write()], vec![ends])?;
            copy_back(&mut b, &output, x)?;
        }
        Ok(issuer.issue(b.finish())?)
    }

    /// The tensors of all ranks, one after the other along axis 0, for all ranks: of shape `[n, …]` each, `[size * n, …]`; of scalars, `[size]`. All
    /// ranks pass the same shape and dtype.
    ///
    /// # Errors
    /// Those of [`Issue`].
    #[track_caller]
    pub fn all_gather<I: Issue>(&self, issuer: I, x: &Tensor) -> Result<Tensor, Error> {
        let mut b = InstructionsBuilder::new();
        let input = contiguous(&mut b, x)?;
        let output = new(x.dtype(), &self.gathered(x))?;
        let call = self.call(Verb::AllGather, "all_gather", None, &[x])?;
        let ends = Ends { input: Some(0), output: Some(1), elements: x.numel() };
        self.emit(&mut b, call, vec![input.read(), output.write()], vec![ends])?;
        self.back(b, issuer, &output, x.place())
    }

    /// As [`all_gather`](Group::all_gather), for `root` alone; the others get `None`.
    ///
    /// # Errors
    /// There is no rank `root`; those of [`Issue`].
    #[track_caller]
    pub fn gather<I: Issue>(&self, issuer: I, x: &Tensor, root: usize) -> Result<Option<Tensor>, Error> {
        let mut b = InstructionsBuilder::new();
        let input = contiguous(&mut b, x)?;
        let call = self.call(Verb::Gather(self.peer("gather", root)?), "gather", None, &[x])?;
        let ends = Ends { input: Some(0), output: None, elements: x.numel() };
        if root != self.rank() {
            self.emit(&mut b, call, vec![input.read()], vec![ends])?;
            issuer.issue(b.finish())?;
            return Ok(None);
        }
        let output = new(x.dtype(), &self.gathered(x))?;
        self.emit(&mut b, call, vec![input.read(), output.write()], vec![Ends { output: Some(1), ..ends }])?;
        self.back(b, issuer, &output, x.place()).map(Some)
    }

    /// Combines `x` of all ranks, of shape `[size * n, …]`, and returns to each rank its part, of shape `[n, …]`: rank `r` gets rows `r * n..(r + 1) * n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce); axis 0 does not divide by the number of ranks.
    #[track_caller]
    pub fn reduce_scatter<I: Issue>(&self, issuer: I, x: &Tensor, by: Reduction) -> Result<Tensor, Error> {
        let mut b = InstructionsBuilder::new();
        let input = contiguous(&mut b, x)?;
        let output = new(x.dtype(), &self.divided("reduce_scatter", x)?)?;
        let mut call = self.call(Verb::ReduceScatter(by.fold()), "reduce_scatter", Some(by), &[x])?;
        call.count = output.numel();
        let ends = Ends { input: Some(0), output: Some(1), elements: x.numel() };
        self.emit(&mut b, call, vec![input.read(), output.write()], vec![ends])?;
        self.back(b, issuer, &output, x.place())
    }

    /// Writes part `r` of `whole`, along axis 0, into `part` of rank `r`. Rank `root` passes `whole`, of shape `[size * n, …]`, the others `None`; all pass a
    /// `part` of shape `[n, …]` and the same dtype.
    ///
    /// # Errors
    /// There is no rank `root`; `whole` is missing there, is given elsewhere, or does not fit `part`; those of [`Issue`].
    #[track_caller]
    pub fn scatter<I: Issue>(&self, issuer: I, whole: Option<&Tensor>, part: &Tensor, root: usize) -> Result<I::Issued, Error> {
        let mut b = InstructionsBuilder::new();
        let call = self.call(Verb::Scatter(self.peer("scatter", root)?), "scatter", None, &[part])?;
        let output = room(part)?;
        let given = match (whole, root == self.rank()) {
            (Some(whole), true) => {
                let fits = whole.dtype() == part.dtype() && self.divided("scatter", whole)? == part.dims();
                if !fits {
                    return Err(refused("scatter", &format!("{} does not have {} parts of {}", whole.described(), self.size(), part.described())));
                }
                Some(contiguous(&mut b, whole)?)
            }
            (None, false) => None,
            (Some(_), false) => return Err(refused("scatter", &format!("this is rank {}, and rank {root} alone passes the whole", self.rank()))),
            (None, true) => return Err(refused("scatter", &format!("rank {root}, which this is, must pass the whole"))),
        };
        let elements = part.numel();
        match &given {
            Some(input) => {
                let ends = Ends { input: Some(0), output: Some(1), elements };
                self.emit(&mut b, call, vec![input.read(), output.write()], vec![ends])?;
            }
            None => {
                let ends = Ends { input: None, output: Some(0), elements };
                self.emit(&mut b, call, vec![output.write()], vec![ends])?;
            }
        }
        copy_back(&mut b, &output, part)?;
        Ok(issuer.issue(b.finish())?)
    }

    /// Sends part `r` of `x`, along axis 0, to rank `r`, and returns the parts that the ranks have sent to this one, in their order. Axis 0 of `x` divides by the
    /// number of ranks; all ranks pass the same shape and dtype, and get it.
    ///
    /// # Errors
    /// Axis 0 does not divide; those of [`Issue`].
    #[track_caller]
    pub fn all_to_all<I: Issue>(&self, issuer: I, x: &Tensor) -> Result<Tensor, Error> {
        let mut b = InstructionsBuilder::new();
        self.divided("all_to_all", x)?;
        let input = contiguous(&mut b, x)?;
        let output = new(x.dtype(), x.dims())?;
        let mut call = self.call(Verb::AllToAll, "all_to_all", None, &[x])?;
        call.count = x.numel() / self.size();
        let ends = Ends { input: Some(0), output: Some(1), elements: x.numel() };
        self.emit(&mut b, call, vec![input.read(), output.write()], vec![ends])?;
        self.back(b, issuer, &output, x.place())
    }

    /// Sends `x` to another rank, which [receives](Group::receive) it. Messages between two ranks of a group arrive in the order in which they were sent.
    /// Messages to different ranks, messages from them, and collectives do not wait for each other.
    ///
    /// # Errors
    /// There is no rank `to`, or it is this one; those of [`Issue`].
    #[track_caller]
    pub fn send<I: Issue>(&self, issuer: I, x: &Tensor, to: usize) -> Result<I::Issued, Error> {
        let mut b = InstructionsBuilder::new();
        let call = self.call(Verb::Send(self.other("send", to)?), "send", None, &[x])?;
        let input = contiguous(&mut b, x)?;
        let ends = Ends { input: Some(0), output: None, elements: x.numel() };
        self.emit(&mut b, call, vec![input.read()], vec![ends])?;
        Ok(issuer.issue(b.finish())?)
    }

    /// Receives a message of another rank into `x`, which has the shape and dtype of the tensor that was [sent](Group::send).
    ///
    /// # Errors
    /// There is no rank `from`, or it is this one; `x` broadcasts; those of [`Issue`].
    #[track_caller]
    pub fn receive<I: Issue>(&self, issuer: I, x: &Tensor, from: usize) -> Result<I::Issued, Error> {
        let mut b = InstructionsBuilder::new();
        let call = self.call(Verb::Receive(self.other("receive", from)?), "receive", None, &[x])?;
        let output = room(x)?;
        let ends = Ends { input: None, output: Some(0), elements: x.numel() };
        self.emit(&mut b, call, vec![output.write()], vec![ends])?;
        copy_back(&mut b, &output, x)?;
        Ok(issuer.issue(b.finish())?)
    }

    /// Orders everything that any rank issues after its call after everything that any rank has issued before its call.
    ///
    /// # Errors
    /// Those of [`Issue`].
    #[track_caller]
    pub fn barrier<I: Issue>(&self, issuer: I) -> Result<I::Issued, Error> {
        let mut b = InstructionsBuilder::new();
        b.barrier();
        let call = self.call(Verb::Barrier, "barrier", None, &[])?;
        self.emit(&mut b, call, vec![], vec![])?;
        b.barrier();
        Ok(issuer.issue(b.finish())?)
    }

    /// # Errors
    /// The tensors do not fit the reduction, or each other.
    #[track_caller]
    fn call(&self, verb: Verb, name: &str, by: Option<Reduction>, tensors: &[&Tensor]) -> Result<Call, Error> {
        let place = Location::caller();
        let dtype = match tensors {
            [] if verb == Verb::Barrier => DType::U8,
            [] => return Err(refused(name, "there is no tensor")),
            [first, others @ ..] => match others.iter().find(|other| other.dtype() != first.dtype()) {
                Some(other) => return Err(refused(name, &format!("one collective takes one dtype, not {} and {}", first.dtype(), other.dtype()))),
                None => first.dtype(),
            },
        };
        if let Some(by) = by
            && let Some(reason) = by.refuses(dtype)
        {
            return Err(refused(name, &reason));
        }
        let mean = by == Some(Reduction::Mean);
        let by = by.map(|by| format!(" {by}")).unwrap_or_default();
        let peer = match verb {
            Verb::Reduce(_, root) | Verb::Gather(root) | Verb::Send(root) => format!(" to {root}"),
            Verb::Broadcast(root) | Verb::Scatter(root) | Verb::Receive(root) => format!(" from {root}"),
            _ => String::new(),
        };
        let what: Vec<String> = tensors.iter().map(|x| format!(" {}{}", x.dtype(), x.shape())).collect();
        let text = format!("{name}{by}{peer}{} over {} ({}:{})", what.concat(), self.name(), place.file(), place.line());
        Ok(Call { verb, dtype, count: tensors.first().map_or(0, |x| x.numel()), mean, text })
    }

    /// Appends the function of a collective to a list.
    #[track_caller]
    fn emit(&self, b: &mut InstructionsBuilder, call: Call, uses: Vec<Use<'_>>, ends: Vec<Ends>) -> Result<(), Error> {
        let lane = match call.verb {
            Verb::Send(to) => self.message_lane(to, true),
            Verb::Receive(from) => self.message_lane(from, false),
            _ => self.inner.lane,
        };
        let name = call.text.rsplit_once(" (").map_or(call.text.as_str(), |(name, _)| name).to_owned();
        let inner = self.inner.clone();
        let mut b: BuilderScope<'_> = b.on_lane(lane);
        let mut b = b.on_collective();
        b.call_fn(name, CPU, uses, move |context| inner.start(context, call, &ends))?;
        Ok(())
    }

    /// The lane of the messages to or from a rank.
    fn message_lane(&self, rank: usize, sends: bool) -> u32 {
        let mut known = self.inner.messages.lock().unwrap_or_else(PoisonError::into_inner);
        match known.iter().find(|(other, sent, _)| (*other, *sent) == (rank, sends)) {
            Some((_, _, lane)) => *lane,
            None => {
                let lane = self.inner.session.next_lane();
                known.push((rank, sends, lane));
                lane
            }
        }
    }

    /// Issues the list, with a copy of the result to the place of the operand, if that is another one.
    #[track_caller]
    fn back<I: Issue>(&self, mut b: InstructionsBuilder, issuer: I, output: &Tensor, place: Place) -> Result<Tensor, Error> {
        let result = match place {
            Place::Device(CPU) | Place::Host => output.clone(),
            other => b.copy(output, other)?,
        };
        issuer.issue(b.finish())?;
        Ok(result)
    }

    #[track_caller]
    fn peer(&self, name: &str, rank: usize) -> Result<usize, Error> {
        if rank < self.size() {
            return Ok(rank);
        }
        Err(refused(name, &format!("there is no rank {rank}; {} has the ranks 0 to {}", self.name(), self.size() - 1)))
    }

    #[track_caller]
    fn other(&self, name: &str, rank: usize) -> Result<usize, Error> {
        if rank == self.rank() {
            return Err(refused(name, &format!("rank {rank} is this rank; a message goes to another one")));
        }
        self.peer(name, rank)
    }

    fn gathered(&self, x: &Tensor) -> Vec<usize> {
        match x.dims() {
            [] => vec![self.size()],
            [first, others @ ..] => [&[first * self.size()], others].concat(),
        }
    }

    #[track_caller]
    fn divided(&self, name: &str, x: &Tensor) -> Result<Vec<usize>, Error> {
        match x.dims() {
            [first, others @ ..] if first % self.size() == 0 => Ok([&[first / self.size()], others].concat()),
            _ => Err(refused(name, &format!("axis 0 of {}{} does not divide among {} ranks", x.dtype(), x.shape(), self.size()))),
        }
    }
}

impl Inner {
    /// Starts a collective, over the operands of its function.
    ///
    /// # Errors
    /// Always: the answer that an operation has been started is one, too.
    fn start(&self, context: &mut FnContext<'_>, call: Call, ends: &[Ends]) -> Result<(), FnError> {
        let operands = context.take_all()?;
        if let Some(gap) = operands.iter().find(|operand| !operand.is_contiguous()) {
            return Err(format!("an operand has gaps: {:?}", gap.layout()).into());
        }
        let input = |at: Option<usize>| at.map_or(std::ptr::null(), |at| operands[at].ptr().cast_const());
        let output = |at: Option<usize>| at.map_or(std::ptr::null_mut(), |at| operands[at].ptr());
        let pieces: Vec<Piece> = ends
            .iter()
            .map(|ends| Piece { input: input(ends.input), output: output(ends.output), elements: ends.elements })
            .collect();
        let (group, Call { verb, dtype, count, mean, text }) = (&*self.communicator, call);
        let reduces = matches!(verb, Verb::AllReduce(_) | Verb::Reduce(..) | Verb::ReduceScatter(_));
        let operation = if reduces {
            // SAFETY: the operands have the elements, are aligned and contiguous; the engine keeps their memory, and orders all other uses of it after this
            // instruction, until the operation is over.
            unsafe { Staged::start(group, (verb, dtype), &pieces, mean, text) }?
        } else {
            let (input, output) = pieces.first().map_or((std::ptr::null(), std::ptr::null_mut()), |piece| (piece.input, piece.output));
            // SAFETY: as above.
            unsafe { group.start(Transfer { verb, dtype, count, input, output, call: text }) }?
        };
        Err(Box::new(Unfinished(operation)))
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({}, rank {} of {})", self.name(), self.rank(), self.size())
    }
}

#[track_caller]
fn refused(name: &str, why: &str) -> Error {
    let place = Location::caller();
    RankError::Argument(format!("{name} at {}:{}: {why}", place.file(), place.line())).into()
}

/// A new tensor on the CPU.
fn new(dtype: DType, dims: &[usize]) -> Result<Tensor, Error> {
    let shape = Shape::new(dims).map_err(streamvm::BuildError::from).map_err(streamvm::Error::from)?;
    Ok(Tensor::unbound(CPU.into(), MemoryKind::Device, dtype, shape))
}

fn is_ready(x: &Tensor) -> bool {
    x.place() == Place::Device(CPU) && x.layout().is_contiguous()
}

/// The elements of `x` on the CPU, without gaps: itself, or a copy.
#[track_caller]
fn contiguous(b: &mut InstructionsBuilder, x: &Tensor) -> Result<Tensor, Error> {
    Ok(if is_ready(x) { x.clone() } else { b.copy(x, CPU)? })
}

/// Where elements for `x` are written: itself, or a new tensor that [`copy_back`] copies.
fn room(x: &Tensor) -> Result<Tensor, Error> {
    if is_ready(x) { Ok(x.clone()) } else { new(x.dtype(), x.dims()) }
}

#[track_caller]
fn copy_back(b: &mut InstructionsBuilder, from: &Tensor, x: &Tensor) -> Result<(), Error> {
    if is_ready(x) { Ok(()) } else { Ok(b.copy_into(from, x)?) }
}
