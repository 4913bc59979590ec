//! Mutants of the compiler: faults that the test suites plant in its passes, to prove that they would detect them.
//!
//! Each mutant breaks one rule of one pass. It is an option of one compilation, in builds with the feature `mutants` only; without the feature
//! [`CompileOptions::has`](crate::plan::options::CompileOptions::has) is a constant, so the broken branch is not compiled.

/// A rule to break.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Mutant {
    /// A step is removed because a later step overwrites a part of what it writes, as if that were all of it.
    NeededStepRemoved,
    /// Every second unit comes after none of the units that it must come after.
    DependenceDropped,
    /// Steps come in no order but that of their operands, although the recording asks for one.
    OrderDropped,
    /// Critical sections of the recording are left out.
    SectionDropped,
    /// A unit joins the last segment of its stream, although a critical section begins or ends in between.
    SectionJoined,
    /// A unit joins the last segment of its stream, although it must come after a further segment of another stream.
    JoinedTooFar,
    /// A branch of a segment waits for no branch of another lane.
    BranchWaitDropped,
    /// The last step that uses a value does not count as a use of it.
    LastUseTooEarly,
    /// A loop does not keep the values that were made before it.
    LoopEdgeMissing,
    /// A step writes over an input that a later step reads.
    InPlaceThoughRead,
    /// Steps that use one piece of memory through different views run together.
    FusedOverViews,
    /// A value in an arena counts one byte too few, so the next value may begin at its last byte.
    OneByteShort,
}
