//! Mutants: faults that the suites plant in an engine, to prove that they would be found.
//!
//! Each names one broken rule at one place of the code. An engine carries at most one, given to it when it is built;
//! there is no global switch. Without the feature `mutants` a [`Planted`] is empty and [`Planted::is`] is a constant, so
//! that the broken branch is not even compiled; with it, an engine that was given none behaves as without.

/// A rule to break.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Mutant {
    /// Soft sync leaves out the waits of every third instruction of a stream, and believes that they were there.
    WaitDropped,
    /// Soft sync waits for another stream than the one that the need names.
    WrongSource,
    /// A record stands before the instruction whose point it shows, instead of behind it.
    RecordBefore,
    /// A stream that is held back records behind what holds it, instead of before.
    RecordBehindHeld,
    /// A block is handed out without the accesses of its former lives.
    ReuseWithoutSync,
    /// A freed block forgets what still uses it, so that it is handed out as if that had passed.
    ReturnedEarly,
    /// Every other read of a resource is not noted.
    LastUseNotUpdated,
    /// Every other use of a part of a storage needs nothing, as if it overlapped no other.
    PartsApart,
    /// A wait merges the source's clock of now, instead of as of the point.
    ClockTooFar,
    /// An instruction is dispatched before its host waits have passed.
    HostWaitMet,
    /// An instruction is published as passed before its outcome is entered and its captures are dropped.
    NotifiedBeforePublished,
    /// What reads poison is skipped and passes nothing on.
    PoisonNotCarried,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 12] = [
        Mutant::WaitDropped,
        Mutant::WrongSource,
        Mutant::RecordBefore,
        Mutant::RecordBehindHeld,
        Mutant::ReuseWithoutSync,
        Mutant::ReturnedEarly,
        Mutant::LastUseNotUpdated,
        Mutant::PartsApart,
        Mutant::ClockTooFar,
        Mutant::HostWaitMet,
        Mutant::NotifiedBeforePublished,
        Mutant::PoisonNotCarried,
    ];
}

/// The mutant that one engine carries; none by default.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Planted {
    #[cfg(feature = "mutants")]
    mutant: Option<Mutant>,
}

impl Planted {
    /// Carries `mutant`.
    #[cfg(feature = "mutants")]
    pub const fn new(mutant: Mutant) -> Planted {
        Planted { mutant: Some(mutant) }
    }

    /// Whether the engine carries this one.
    #[cfg(feature = "mutants")]
    #[inline]
    pub fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether the engine carries this one: no, in this build.
    #[cfg(not(feature = "mutants"))]
    #[inline(always)]
    pub const fn is(self, _: Mutant) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_carries_none_unless_given_one() {
        assert!(Mutant::ALL.iter().all(|mutant| !Planted::default().is(*mutant)));
    }

    #[cfg(not(feature = "mutants"))]
    #[test]
    fn without_the_feature_there_is_nothing_to_carry() {
        assert_eq!(size_of::<Planted>(), 0);
    }
}
