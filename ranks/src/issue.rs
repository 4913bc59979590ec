//! [`Issue`]: where the instructions of a collective go.

use streamvm::{Error, InstructionList, InstructionsBuilder, Ticket, Vm};

/// What takes the instructions of a collective: an engine, which submits them at once, or a builder, which appends them to its list.
///
/// The methods of [`Group`](crate::Group) fail as these do: an operand lives where a copy cannot reach it, or belongs to another engine. A failure of
/// the collective itself is a failure of its instruction, like any other: what reads its result is skipped, and every wait returns it.
pub trait Issue {
    /// What a collective without a result returns.
    type Issued;

    /// Takes the instructions.
    ///
    /// # Errors
    /// As [`Vm::submit`]; never for a builder.
    fn issue(self, list: InstructionList) -> Result<Self::Issued, Error>;
}

impl<'vm> Issue for &'vm Vm {
    type Issued = Ticket<'vm>;

    #[track_caller]
    fn issue(self, list: InstructionList) -> Result<Ticket<'vm>, Error> {
        self.submit(list)
    }
}

impl Issue for &mut InstructionsBuilder {
    type Issued = ();

    fn issue(self, list: InstructionList) -> Result<(), Error> {
        self.append(list);
        Ok(())
    }
}
