//! [`Group`]: ranks that communicate, and the collectives over them.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use streamvm::ep::{MAX_WRITES, Operand, Operation, Unfinished};
use streamvm::{BuildError, DType, Error, FnContext, FnError, Site, Tensor};

use crate::draft::{Draft, Ends};
use crate::issue::{Collective, Issue};
use crate::order::{Asking, Comparing, Log};
use crate::reduction::Reduction;
use crate::session::Session;
use crate::transport::{Capabilities, Communicator, Piece, RankError, Staged, Transfer, Verb, without_line};

/// Ranks that communicate. Clones are the same group. It may be used from any thread, but the collectives of a group must be issued in the same order on all of its
/// ranks, and to one engine; see [the crate's page](crate).
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    communicator: Arc<dyn Communicator>,
    session: Arc<Session>,
    /// The lane of the group's collective stream.
    lane: u32,
    /// Each collective first checks that all ranks call the same one.
    asks: bool,
    /// What was issued.
    log: Mutex<Log>,
    /// A group of the same ranks for checks of the order, with the lane of its stream.
    checks: OnceLock<Result<Checks, RankError>>,
    /// The lanes of messages, by the other rank and whether it sends them.
    messages: Mutex<Vec<(usize, bool, u32)>>,
    /// The lanes on which a collective is under way.
    active: Mutex<Vec<u32>>,
    /// The subgroups made so far, by their members, with their number. Counted for each list of members, because a rank knows only of the subgroups that it is in.
    subgroups: Mutex<Vec<(Vec<usize>, u64)>>,
}

/// A group of the same ranks as another one, with the lane of its stream.
type Checks = (Arc<dyn Communicator>, u32);

/// A collective as its function carries it.
#[derive(Clone)]
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
        let (lane, communicator) = (session.next_lane(), Arc::from(communicator));
        let asks = session.asks && !Communicator::capabilities(&*communicator).checks_order;
        let (log, checks, messages, subgroups) =
            (Mutex::default(), OnceLock::new(), Mutex::default(), Mutex::default());
        let active = Mutex::default();
        let inner = Inner { name, communicator, session, lane, asks, log, checks, messages, active, subgroups };
        Group { inner: Arc::new(inner) }
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
        let refused = |what: String| {
            Err(RankError::Argument(format!("a subgroup of {} with the ranks {members:?}: {what}", self.name())))
        };
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
        let call = self.call(Verb::AllReduce(by.fold()), "all_reduce", Some(by), &[x])?;
        let mut draft = Draft::default();
        let input = draft.read(x)?;
        let (output, result) = draft.result(x, x.dims())?;
        draft.end(Some(input), Some(output), x.numel());
        self.issue(issuer, draft, call)?;
        Ok(result)
    }

    /// Combines tensors of all ranks in place, as one collective: all ranks pass the same shapes, in the same order. All tensors have one dtype, and none
    /// shares bytes with another one.
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce); there is no tensor, there are more than 64, or their dtypes differ.
    #[track_caller]
    pub fn all_reduce_in_place<I: Issue>(
        &self,
        issuer: I,
        tensors: &[&Tensor],
        by: Reduction,
    ) -> Result<I::Issued, Error> {
        if tensors.len() > MAX_WRITES {
            let why = format!(
                "{} tensors are more than one collective takes, which is {MAX_WRITES}; use several",
                tensors.len()
            );
            return Err(refused("all_reduce", &why));
        }
        let mut call = self.call(Verb::AllReduce(by.fold()), "all_reduce", Some(by), tensors)?;
        call.count = tensors.iter().map(|x| x.numel()).sum();
        let mut draft = Draft::default();
        for x in tensors {
            let both = draft.update(x)?;
            draft.end(Some(both), Some(both), x.numel());
        }
        self.issue(issuer, draft, call)
    }

    /// Combines `x` of all ranks, as [`all_reduce`](Group::all_reduce), for `root` alone, which gets the result; the others get `None`.
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce); there is no rank `root`.
    #[track_caller]
    pub fn reduce<I: Issue>(&self, issuer: I, x: &Tensor, by: Reduction, root: usize) -> Result<Option<Tensor>, Error> {
        let call = self.call(Verb::Reduce(by.fold(), self.peer("reduce", root)?), "reduce", Some(by), &[x])?;
        self.to_root(issuer, (x, x.dims()), call, root)
    }

    /// Writes `x` of rank `root` into `x` of all others. All ranks pass the same shape and dtype.
    ///
    /// # Errors
    /// There is no rank `root`; `x` of another rank broadcasts; those of [`Issue`].
    #[track_caller]
    pub fn broadcast<I: Issue>(&self, issuer: I, x: &Tensor, root: usize) -> Result<I::Issued, Error> {
        let call = self.call(Verb::Broadcast(self.peer("broadcast", root)?), "broadcast", None, &[x])?;
        let mut draft = Draft::default();
        if root == self.rank() {
            let input = draft.read(x)?;
            draft.end(Some(input), None, x.numel());
        } else {
            let output = draft.write(x)?;
            draft.end(None, Some(output), x.numel());
        }
        self.issue(issuer, draft, call)
    }

    /// The tensors of all ranks, one after the other along axis 0, for all ranks: of shape `[n, …]` each, `[size * n, …]`; of scalars, `[size]`. All
    /// ranks pass the same shape and dtype.
    ///
    /// # Errors
    /// Those of [`Issue`].
    #[track_caller]
    pub fn all_gather<I: Issue>(&self, issuer: I, x: &Tensor) -> Result<Tensor, Error> {
        let call = self.call(Verb::AllGather, "all_gather", None, &[x])?;
        let mut draft = Draft::default();
        let input = draft.read(x)?;
        let (output, result) = draft.result(x, &self.gathered(x))?;
        draft.end(Some(input), Some(output), x.numel());
        self.issue(issuer, draft, call)?;
        Ok(result)
    }

    /// As [`all_gather`](Group::all_gather), for `root` alone; the others get `None`.
    ///
    /// # Errors
    /// There is no rank `root`; those of [`Issue`].
    #[track_caller]
    pub fn gather<I: Issue>(&self, issuer: I, x: &Tensor, root: usize) -> Result<Option<Tensor>, Error> {
        let call = self.call(Verb::Gather(self.peer("gather", root)?), "gather", None, &[x])?;
        self.to_root(issuer, (x, &self.gathered(x)), call, root)
    }

    /// Combines `x` of all ranks, of shape `[size * n, …]`, and returns to each rank its part, of shape `[n, …]`: rank `r` gets rows `r * n..(r + 1) * n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce); axis 0 does not divide by the number of ranks.
    #[track_caller]
    pub fn reduce_scatter<I: Issue>(&self, issuer: I, x: &Tensor, by: Reduction) -> Result<Tensor, Error> {
        let dims = self.divided("reduce_scatter", x)?;
        let mut call = self.call(Verb::ReduceScatter(by.fold()), "reduce_scatter", Some(by), &[x])?;
        let mut draft = Draft::default();
        let input = draft.read(x)?;
        let (output, result) = draft.result(x, &dims)?;
        call.count = result.numel();
        draft.end(Some(input), Some(output), x.numel());
        self.issue(issuer, draft, call)?;
        Ok(result)
    }

    /// Writes part `r` of `whole`, along axis 0, into `part` of rank `r`. Rank `root` passes `whole`, of shape `[size * n, …]`, the others `None`; all pass a
    /// `part` of shape `[n, …]` and the same dtype.
    ///
    /// # Errors
    /// There is no rank `root`; `whole` is missing there, is given elsewhere, or does not fit `part`; those of [`Issue`].
    #[track_caller]
    pub fn scatter<I: Issue>(
        &self,
        issuer: I,
        whole: Option<&Tensor>,
        part: &Tensor,
        root: usize,
    ) -> Result<I::Issued, Error> {
        let call = self.call(Verb::Scatter(self.peer("scatter", root)?), "scatter", None, &[part])?;
        let mut draft = Draft::default();
        let input = match (whole, root == self.rank()) {
            (Some(whole), true) => {
                if whole.dtype() != part.dtype() || self.divided("scatter", whole)? != part.dims() {
                    let (whole, part) = (described(whole), described(part));
                    return Err(refused("scatter", &format!("{whole} does not have {} parts of {part}", self.size())));
                }
                Some(draft.read(whole)?)
            }
            (None, false) => None,
            (Some(_), false) => {
                let why = format!("this is rank {}, and rank {root} alone passes the whole", self.rank());
                return Err(refused("scatter", &why));
            }
            (None, true) => {
                return Err(refused("scatter", &format!("rank {root}, which this is, must pass the whole")));
            }
        };
        let output = draft.write(part)?;
        draft.end(input, Some(output), part.numel());
        self.issue(issuer, draft, call)
    }

    /// Sends part `r` of `x`, along axis 0, to rank `r`, and returns the parts that the ranks have sent to this one, in their order. Axis 0 of `x` divides by the
    /// number of ranks; all ranks pass the same shape and dtype, and get it.
    ///
    /// # Errors
    /// Axis 0 does not divide; those of [`Issue`].
    #[track_caller]
    pub fn all_to_all<I: Issue>(&self, issuer: I, x: &Tensor) -> Result<Tensor, Error> {
        self.divided("all_to_all", x)?;
        let mut call = self.call(Verb::AllToAll, "all_to_all", None, &[x])?;
        call.count = x.numel() / self.size();
        let mut draft = Draft::default();
        let input = draft.read(x)?;
        let (output, result) = draft.result(x, x.dims())?;
        draft.end(Some(input), Some(output), x.numel());
        self.issue(issuer, draft, call)?;
        Ok(result)
    }

    /// Sends `x` to another rank, which [receives](Group::receive) it. Messages between two ranks of a group arrive in the order in which they were sent.
    /// Messages to different ranks, messages from them, and collectives do not wait for each other.
    ///
    /// # Errors
    /// There is no rank `to`, or it is this one; those of [`Issue`].
    #[track_caller]
    pub fn send<I: Issue>(&self, issuer: I, x: &Tensor, to: usize) -> Result<I::Issued, Error> {
        let call = self.call(Verb::Send(self.other("send", to)?), "send", None, &[x])?;
        let mut draft = Draft::default();
        let input = draft.read(x)?;
        draft.end(Some(input), None, x.numel());
        self.issue(issuer, draft, call)
    }

    /// Receives a message of another rank into `x`, which has the shape and dtype of the tensor that was [sent](Group::send).
    ///
    /// # Errors
    /// There is no rank `from`, or it is this one; `x` broadcasts; those of [`Issue`].
    #[track_caller]
    pub fn receive<I: Issue>(&self, issuer: I, x: &Tensor, from: usize) -> Result<I::Issued, Error> {
        let call = self.call(Verb::Receive(self.other("receive", from)?), "receive", None, &[x])?;
        let mut draft = Draft::default();
        let output = draft.write(x)?;
        draft.end(None, Some(output), x.numel());
        self.issue(issuer, draft, call)
    }

    /// Orders everything that any rank issues after its call after everything that any rank has issued before its call. Recorders refuse it: a program finds its
    /// waits itself.
    ///
    /// # Errors
    /// Those of [`Issue`].
    #[track_caller]
    pub fn barrier<I: Issue>(&self, issuer: I) -> Result<I::Issued, Error> {
        let call = self.call(Verb::Barrier, "barrier", None, &[])?;
        let mut draft = Draft::default();
        draft.before.barrier();
        draft.after.barrier();
        self.issue(issuer, draft, call)
    }

    /// Checks that all ranks have issued the same collectives on this group, in the same order, by eager calls and lists: each rank calls this at the same places of
    /// its program, such as the end of a step of training. Collectives of compiled programs are checked by themselves where [`Capabilities::checks_order`] holds, or
    /// with `STREAMVM_CHECK_ORDER=1`. The first call on a group blocks until all ranks make it; the check itself is an instruction. If it fails,
    /// its error names this rank's call and that of a rank that differs, with both lines, and the group cannot be used any longer. Over MPI collectives that hang
    /// because of it cannot be ended, so all ranks are ended some seconds later, unless MPI is fault tolerant.
    ///
    /// # Errors
    /// The backend refuses; those of [`Issue`]. The ticket's wait returns the failure of the check.
    #[track_caller]
    pub fn check_order<I: Issue>(&self, issuer: I) -> Result<I::Issued, Error> {
        let made = self.inner.checks.get_or_init(|| {
            let all: Vec<usize> = (0..self.size()).collect();
            let communicator = self.inner.communicator.subgroup(&all, u64::MAX)?;
            Ok((Arc::from(communicator), self.inner.session.next_lane()))
        });
        let (group, lane) = made.clone().map_err(|error| refused("check_order", &error.to_string()))?;
        let of = self.inner.communicator.clone();
        let mine = self.inner.log.lock().unwrap_or_else(PoisonError::into_inner).snapshot();
        let code = Arc::new(move |context: &mut FnContext<'_>| -> Result<(), FnError> {
            if context.skipped {
                return Ok(());
            }
            Err(Box::new(Unfinished(Box::new(Comparing::start(&group, &of, mine.clone())?))))
        });
        let name = format!("check_order of {}", self.name());
        let draft = Draft::default();
        let (before, after) = (draft.before.finish(), draft.after.finish());
        issuer.issue(Collective { before, name, lane, uses: Vec::new(), code, after })
    }

    /// A collective whose result `root` alone gets.
    #[track_caller]
    fn to_root<I: Issue>(
        &self,
        issuer: I,
        (x, dims): (&Tensor, &[usize]),
        call: Call,
        root: usize,
    ) -> Result<Option<Tensor>, Error> {
        let mut draft = Draft::default();
        let input = draft.read(x)?;
        let given = if root == self.rank() { Some(draft.result(x, dims)?) } else { None };
        draft.end(Some(input), given.as_ref().map(|(output, _)| *output), x.numel());
        self.issue(issuer, draft, call)?;
        Ok(given.map(|(_, result)| result))
    }

    /// # Errors
    /// The tensors do not fit the reduction, or each other.
    #[track_caller]
    fn call(&self, verb: Verb, name: &str, by: Option<Reduction>, tensors: &[&Tensor]) -> Result<Call, Error> {
        let site = Site::caller();
        let dtype = match tensors {
            [] if verb == Verb::Barrier => DType::U8,
            [] => return Err(refused(name, "there is no tensor")),
            [first, others @ ..] => match others.iter().find(|other| other.dtype() != first.dtype()) {
                Some(other) => {
                    return Err(refused(
                        name,
                        &format!("one collective takes one dtype, not {} and {}", first.dtype(), other.dtype()),
                    ));
                }
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
        let what: Vec<String> = match tensors {
            [_, _, _, _, _, ..] => vec![bucket(tensors)],
            few => few.iter().map(|x| format!(" {}", described(x))).collect(),
        };
        let text = format!("{name}{by}{peer}{} over {} ({}:{})", what.concat(), self.name(), site.file(), site.line());
        Ok(Call { verb, dtype, count: tensors.first().map_or(0, |x| x.numel()), mean, text })
    }

    /// Issues the function of a collective, with the copies of the draft.
    #[track_caller]
    fn issue<I: Issue>(&self, issuer: I, draft: Draft, call: Call) -> Result<I::Issued, Error> {
        let lane = match call.verb {
            Verb::Send(to) => self.message_lane(to, true),
            Verb::Receive(from) => self.message_lane(from, false),
            _ => self.inner.lane,
        };
        let name = without_line(&call.text).to_owned();
        let logged = (I::AT_ONCE && !call.is_message()).then(|| call.text.clone());
        let (inner, Draft { before, uses, ends, after }) = (self.inner.clone(), draft);
        let code = Arc::new(move |context: &mut FnContext<'_>| inner.start(context, call.clone(), &ends, lane));
        let (before, after) = (before.finish(), after.finish());
        let issued = issuer.issue(Collective { before, name, lane, uses, code, after })?;
        if let Some(text) = logged {
            self.inner.log.lock().unwrap_or_else(PoisonError::into_inner).add(&text);
        }
        Ok(issued)
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
            _ => Err(refused(name, &format!("axis 0 of {} does not divide among {} ranks", described(x), self.size()))),
        }
    }
}

impl Call {
    fn is_message(&self) -> bool {
        matches!(self.verb, Verb::Send(_) | Verb::Receive(_))
    }

    /// The elements that one tensor has before and after the collective, in a group of `size` ranks, if `elements` is what [`Ends`] has.
    fn elements(&self, elements: usize, size: usize) -> (usize, usize) {
        match self.verb {
            Verb::AllGather | Verb::Gather(_) => (elements, elements * size),
            Verb::ReduceScatter(_) => (elements, elements / size),
            Verb::Scatter(_) => (elements * size, elements),
            _ => (elements, elements),
        }
    }
}

impl Inner {
    /// Starts a collective, over the operands of its function.
    ///
    /// # Errors
    /// Always: the answer that an operation has been started is one, too. Or the operands are not those that the collective was made for, or the group is in use.
    fn start(
        self: &Arc<Self>,
        context: &mut FnContext<'_>,
        call: Call,
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
        let operands = context.take_all()?;
        let size = self.communicator.size();
        // The code of a step may be called with other operands than it was made for.
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
            let (read, written) = call.elements(ends.elements, size);
            let (input, output) = (address(ends.input, read, false)?, address(ends.output, written, true)?);
            pieces.push(Piece { input: input.cast_const(), output, elements: ends.elements });
        }
        let active = Active::enter(self, lane)?;
        let group = self.communicator.clone();
        let operation = match self.asks && !call.is_message() {
            false => begin(&*group, &call, &pieces)?,
            true => {
                let (of, later) = (group.clone(), call.clone());
                Box::new(Asking::start(&group, &call.text, Box::new(move || begin(&*of, &later, &pieces)))?)
            }
        };
        Err(Box::new(Unfinished(Box::new(OnLane { operation, _active: active }))))
    }
}

/// While this lives, a collective is under way on a lane of a group.
struct Active {
    group: Arc<Inner>,
    lane: u32,
}

impl Active {
    /// # Errors
    /// Another one is: two engines use the group.
    fn enter(group: &Arc<Inner>, lane: u32) -> Result<Active, RankError> {
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
    _active: Active,
}

impl Operation for OnLane {
    fn poll(&mut self) -> Result<bool, FnError> {
        self.operation.poll()
    }
}

/// Starts a collective over the operands of its function, whose memory the engine keeps until the operation that the function answers with is over.
fn begin(group: &dyn Communicator, call: &Call, pieces: &[Piece]) -> Result<Box<dyn Operation>, RankError> {
    let Call { verb, dtype, count, mean, ref text } = *call;
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

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({}, rank {} of {})", self.name(), self.rank(), self.size())
    }
}

#[track_caller]
fn refused(name: &str, why: &str) -> Error {
    let error = BuildError::Collective { name: name.to_owned(), why: why.to_owned() };
    Error::Build { error, call: None, site: Site::caller() }
}

/// A bucket of many tensors in few words, which differ where the shapes do.
fn bucket(tensors: &[&Tensor]) -> String {
    let mut hasher = DefaultHasher::new();
    tensors.iter().for_each(|x| x.dims().hash(&mut hasher));
    let elements: usize = tensors.iter().map(|x| x.numel()).sum();
    let dtype = tensors.first().map_or(DType::U8, |x| x.dtype());
    format!(" {} tensors of {dtype} with {elements} elements (shapes {:08x})", tensors.len(), hasher.finish() as u32)
}

fn described(x: &Tensor) -> String {
    format!("{}{}", x.dtype(), x.shape())
}
