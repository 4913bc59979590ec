//! [`Group`]: ranks that communicate, and the collectives over them.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use streamvm::ep::{MAX_WRITES, Unfinished};
use streamvm::{BuildError, DType, DeviceId, DeviceKind, Error, FnContext, FnError, InstructionList, Site, Tensor, Vm};

use crate::draft::Draft;
use crate::issue::{CPU, Collective, Issue};
use crate::nccl::{Nccl, combined_as, of_host};
use crate::order::{Comparing, Log};
use crate::reduction::Reduction;
use crate::running::{Call, Running};
use crate::session::Session;
use crate::transport::{Capabilities, Communicator, RankError, Verb, without_line};

/// Ranks that communicate. Clones are the same group. It may be used from any thread, but the collectives of a group must be issued in the same order on all of its
/// ranks, and to one engine; see [the crate's page](crate).
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
}

struct Inner {
    running: Arc<Running>,
    session: Arc<Session>,
    /// The device on which collectives run.
    device: DeviceId,
    /// The lane of the group's collective stream.
    lane: u32,
    /// The calls issued so far.
    log: Arc<Mutex<Log>>,
    /// A group of the same ranks for checks of the order, with the lane of its stream.
    checks: OnceLock<Result<Checks, RankError>>,
    /// The lanes of messages, by the other rank and whether it sends them.
    messages: Mutex<Vec<(usize, bool, u32)>>,
    /// The subgroups made so far, by their members, with their number. Counted for each list of members, because a rank knows only of the subgroups that it is in.
    subgroups: Mutex<Vec<(Vec<usize>, u64)>>,
}

/// A group of the same ranks as another one, with the lane of its stream.
type Checks = (Arc<dyn Communicator>, u32);

impl Group {
    /// A group of the host, or, with NCCL, of a GPU and its lane.
    pub(crate) fn new(
        name: String,
        communicator: Arc<dyn Communicator>,
        nccl: Option<(Arc<Nccl>, DeviceId, u32)>,
        session: Arc<Session>,
    ) -> Group {
        let (nccl, device, lane) = match nccl {
            Some((nccl, device, lane)) => (Some(nccl), device, lane),
            None => (None, CPU, session.next_lane()),
        };
        let running = Arc::new(Running::new(name, communicator, nccl, session.asks));
        let (log, messages, subgroups) = (Arc::default(), Mutex::default(), Mutex::default());
        let checks = OnceLock::new();
        Group { inner: Arc::new(Inner { running, session, device, lane, log, checks, messages, subgroups }) }
    }

    /// The number of this rank in the group, from 0.
    pub fn rank(&self) -> usize {
        self.inner.running.communicator.rank()
    }

    /// The number of ranks in the group.
    pub fn size(&self) -> usize {
        self.inner.running.communicator.size()
    }

    /// The name of the group, as instructions show it: `world`, or the members of a subgroup.
    pub fn name(&self) -> &str {
        &self.inner.running.name
    }

    /// The device on which the collectives run: a CPU, unless the group was made by [`on_device`](Group::on_device).
    pub fn device(&self) -> DeviceId {
        self.inner.device
    }

    /// The group of the same ranks whose collectives run on a GPU of each rank, by NCCL, which is loaded now: the library that `STREAMVM_NCCL` names, or the one that the
    /// loader finds. Each rank passes a GPU of its own, as an engine of its own has it; the group is for that engine. Tensors on that GPU are not copied. Blocks until all ranks
    /// of the group have called it.
    ///
    /// # Errors
    /// [`RankError::Argument`] if the device is none of CUDA's, or if this group has a GPU already; a rank has no NCCL, or another version of it; the engine does not have the
    /// device; the errors of NCCL and of the backend.
    pub fn on_device(&self, vm: &Vm, device: DeviceId) -> Result<Group, RankError> {
        if device.kind != DeviceKind::CUDA {
            return Err(RankError::Argument(format!("{device} is no GPU of CUDA, for which `on_device` is")));
        }
        let all: Vec<usize> = (0..self.size()).collect();
        let host = self.host("on_device")?.subgroup(&all, self.serial_of(&all))?;
        let (session, name) = (self.inner.session.clone(), format!("{} on {device}", self.name()));
        let lane = session.next_lane();
        let nccl = Arc::new(Nccl::join(Arc::from(host), vm, device, lane, session.limit)?);
        Ok(Group::new(name, nccl.clone(), Some((nccl, device, lane)), session))
    }

    /// The communicator, which makes others.
    ///
    /// # Errors
    /// The group has a GPU.
    fn host(&self, call: &str) -> Result<&dyn Communicator, RankError> {
        match self.device() {
            CPU => Ok(&*self.inner.running.communicator),
            _ => Err(of_host(call)),
        }
    }

    /// The capabilities of the group's backend.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.running.communicator.capabilities()
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
        let communicator = self.host("subgroup")?.subgroup(members, serial)?;
        let name = members.iter().map(usize::to_string).collect::<Vec<_>>().join("+");
        Ok(Group::new(format!("{}:{name}", self.name()), Arc::from(communicator), None, self.inner.session.clone()))
    }

    /// The group of the ranks of this group that are still there, after others were lost. Each of them calls this. Blocks until they all have.
    ///
    /// # Errors
    /// The backend does not survive the loss of a rank ([`Capabilities`]), or a rank does not come in time.
    pub fn shrink(&self) -> Result<Group, RankError> {
        let serial = self.serial_of(&[]);
        let communicator = self.host("shrink")?.shrink(serial)?;
        let name = format!("{}-{}", self.name(), communicator.size());
        Ok(Group::new(name, Arc::from(communicator), None, self.inner.session.clone()))
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
        self.to_all(issuer, (x, x.dims()), call)
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
        let call = self.call(Verb::AllReduce(by.fold()), "all_reduce", Some(by), tensors)?;
        let mut draft = self.draft(&call);
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
        let mut draft = self.draft(&call);
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
        self.to_all(issuer, (x, &self.gathered(x)), call)
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
        let call = self.call(Verb::ReduceScatter(by.fold()), "reduce_scatter", Some(by), &[x])?;
        self.to_all(issuer, (x, &dims), call)
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
        let mut draft = self.draft(&call);
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
        let call = self.call(Verb::AllToAll, "all_to_all", None, &[x])?;
        self.to_all(issuer, (x, x.dims()), call)
    }

    /// Sends `x` to another rank, which [receives](Group::receive) it. Messages between two ranks of a group arrive in the order in which they were sent.
    /// Messages to different ranks, messages from them, and collectives do not wait for each other.
    ///
    /// # Errors
    /// There is no rank `to`, or it is this one; those of [`Issue`].
    #[track_caller]
    pub fn send<I: Issue>(&self, issuer: I, x: &Tensor, to: usize) -> Result<I::Issued, Error> {
        let call = self.call(Verb::Send(self.other("send", to)?), "send", None, &[x])?;
        let mut draft = self.draft(&call);
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
        let mut draft = self.draft(&call);
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
        let mut draft = self.draft(&call);
        draft.before.barrier();
        if self.device() != CPU {
            let token = draft.token()?;
            draft.end(Some(token), Some(token), 1);
        }
        draft.after.barrier();
        self.issue(issuer, draft, call)
    }

    /// Checks that all ranks have issued the same collectives on this group, in the same order, by eager calls, lists and runs of programs: each rank calls this at the
    /// same places of its program, such as the end of a step of training. Of programs with bounded sizes the bounds are compared, not the sizes of a run. The first call on a group blocks until all ranks make it; the check itself is an instruction. If it fails,
    /// its error names this rank's call and that of a rank that differs, with both lines, and the group cannot be used any longer. Over MPI collectives that hang
    /// because of it cannot be ended, so all ranks are ended some seconds later, unless MPI is fault tolerant. Recorders refuse it: it is called after a run.
    ///
    /// # Errors
    /// The backend refuses; those of [`Issue`]. The ticket's wait returns the failure of the check.
    #[track_caller]
    pub fn check_order<I: Issue>(&self, issuer: I) -> Result<I::Issued, Error> {
        if !I::AT_ONCE {
            return Err(refused(
                "check_order",
                "it compares what was issued before it, so call it after a run of the program",
            ));
        }
        let made = self.inner.checks.get_or_init(|| {
            let all: Vec<usize> = (0..self.size()).collect();
            let communicator = self.inner.running.communicator.subgroup(&all, u64::MAX)?;
            Ok((Arc::from(communicator), self.inner.session.next_lane()))
        });
        let (group, lane) = made.clone().map_err(|error| refused("check_order", &error.to_string()))?;
        let of = self.inner.running.communicator.clone();
        let mine = self.inner.log.lock().unwrap_or_else(PoisonError::into_inner).snapshot();
        let code = Arc::new(move |context: &mut FnContext<'_>| -> Result<(), FnError> {
            if context.skipped {
                return Ok(());
            }
            Err(Box::new(Unfinished(Box::new(Comparing::start(&group, &of, mine.clone())?))))
        });
        let name = format!("check_order of {}", self.name());
        let (before, after) = (InstructionList::new(), InstructionList::new());
        let (uses, issued) = (Vec::new(), Arc::new(|| {}));
        issuer.issue(Collective { before, device: CPU, name, lane, uses, code, after, issued })
    }

    fn draft(&self, call: &Call) -> Draft {
        Draft::new(self.device(), call.dtype)
    }

    /// A collective whose result, of shape `dims`, each rank gets.
    #[track_caller]
    fn to_all<I: Issue>(&self, issuer: I, (x, dims): (&Tensor, &[usize]), call: Call) -> Result<Tensor, Error> {
        let mut draft = self.draft(&call);
        let input = draft.read(x)?;
        let (output, result) = draft.result(x, dims)?;
        draft.end(Some(input), Some(output), x.numel());
        self.issue(issuer, draft, call)?;
        Ok(result)
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
        let mut draft = self.draft(&call);
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
        let (mean, by_nccl) = (by == Some(Reduction::Mean), by.is_some() && self.device() != CPU);
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
        let (of, over) = (tensors.first().map_or(String::new(), |x| format!(" {}", x.dtype())), self.name());
        let step = format!("{name}{by}{peer}{of} over {over}");
        let dtype = if by_nccl { combined_as(dtype) } else { dtype };
        Ok(Call { verb, dtype, mean, text, step })
    }

    /// Issues the function of a collective, with the copies of the draft.
    #[track_caller]
    fn issue<I: Issue>(&self, issuer: I, draft: Draft, call: Call) -> Result<I::Issued, Error> {
        let lane = match call.verb {
            Verb::Send(to) => self.message_lane(to, true),
            Verb::Receive(from) => self.message_lane(from, false),
            _ => self.inner.lane,
        };
        let name = if I::AT_ONCE { without_line(&call.text).to_owned() } else { call.step.clone() };
        let (log, text) = (self.inner.log.clone(), (!call.is_message()).then(|| call.text.clone()));
        let issued = Arc::new(move || {
            if let Some(text) = &text {
                log.lock().unwrap_or_else(PoisonError::into_inner).add(text);
            }
        });
        let (running, Draft { device, before, uses, ends, after, .. }) = (self.inner.running.clone(), draft);
        let code = Arc::new(move |context: &mut FnContext<'_>| running.start(context, call.clone(), &ends, lane));
        let (before, after) = (before.finish(), after.finish());
        issuer.issue(Collective { before, device, name, lane, uses, code, after, issued })
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
