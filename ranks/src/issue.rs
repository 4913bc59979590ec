//! [`Issue`]: where the instructions of a collective go.

use std::sync::Arc;

use streamvm::program::{FunctionCode, Recorder, StepFunction};
use streamvm::{Access, DeviceId, Error, FnContext, InstructionList, InstructionsBuilder, Tensor, Ticket, Use, Vm};

/// The device of collectives on the host.
pub(crate) const CPU: DeviceId = DeviceId::cpu(0);

/// A receiver of the instructions of a collective: an engine, which submits them at once; a builder, which appends them to its list; a recorder, which makes them steps
/// of a program.
///
/// The methods of [`Group`](crate::Group) fail as these do: an operand lives where a copy cannot reach it, belongs to another engine, or the step would lie
/// in a block. A failure of the collective itself is a failure of its instruction, like any other: instructions that read its result are skipped, and every wait
/// returns it.
pub trait Issue {
    /// The return type of collectives without a result: a ticket of an engine, `()` of others.
    type Issued;

    /// Whether the collective is issued by this call. A step of a program is issued by each run.
    const AT_ONCE: bool = true;

    /// Takes the instructions.
    ///
    /// # Errors
    /// As [`Vm::submit`], [`InstructionsBuilder::call_fn`] or [`Recorder::call_fn`].
    fn issue(self, collective: Collective) -> Result<Self::Issued, Error>;
}

/// The instructions of a collective: its function on a collective stream, and the copies of operands that are elsewhere or have gaps. Made by the methods of
/// [`Group`](crate::Group).
pub struct Collective {
    pub(crate) before: InstructionList,
    pub(crate) device: DeviceId,
    pub(crate) name: String,
    pub(crate) lane: u32,
    pub(crate) uses: Vec<(Tensor, Access)>,
    pub(crate) code: Arc<FunctionCode>,
    pub(crate) after: InstructionList,
    /// To be called when the collective is issued: once by lists, by each run of a program.
    pub(crate) issued: Arc<dyn Fn() + Send + Sync>,
}

impl Collective {
    fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        self.uses.iter().map(|(tensor, access)| match access {
            Access::Read => tensor.read(),
            Access::Write => tensor.write(),
            Access::ReadWrite => tensor.update(),
        })
    }

    #[track_caller]
    fn append_to(mut self, builder: &mut InstructionsBuilder) -> Result<(), Error> {
        builder.append(std::mem::take(&mut self.before));
        let code = self.code.clone();
        let function = move |context: &mut FnContext<'_>| code(context);
        let (name, mut on_lane) = (self.name.clone(), builder.on_lane(self.lane));
        match self.device {
            CPU => on_lane.on_collective().call_helpable(name, CPU, self.uses(), function)?,
            device => on_lane.on_collective().call_raw(name, device, self.uses(), function)?,
        }
        drop(on_lane);
        builder.append(self.after);
        Ok(())
    }
}

impl<'vm> Issue for &'vm Vm {
    type Issued = Ticket<'vm>;

    #[track_caller]
    fn issue(self, collective: Collective) -> Result<Ticket<'vm>, Error> {
        let (mut builder, issued) = (InstructionsBuilder::new(), collective.issued.clone());
        collective.append_to(&mut builder)?;
        let ticket = self.submit(builder.finish())?;
        issued();
        Ok(ticket)
    }
}

impl Issue for &mut InstructionsBuilder {
    type Issued = ();

    #[track_caller]
    fn issue(self, collective: Collective) -> Result<(), Error> {
        let issued = collective.issued.clone();
        collective.append_to(self)?;
        issued();
        Ok(())
    }
}

impl Issue for &Recorder {
    type Issued = ();

    const AT_ONCE: bool = false;

    #[track_caller]
    fn issue(self, mut collective: Collective) -> Result<(), Error> {
        self.submit(std::mem::take(&mut collective.before))?;
        let (code, issued) = (collective.code.clone(), collective.issued.clone());
        let function = StepFunction::new(collective.name.clone(), collective.device, Some(code));
        self.call_on_collective(function.when_issued(move || issued()), collective.lane, collective.uses())?;
        self.submit(collective.after)
    }
}

impl std::fmt::Debug for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Collective({})", self.name)
    }
}
