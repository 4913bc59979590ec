//! Mutants: faults that the test suites plant in an engine, to prove that they would detect them.
//!
//! Each mutant breaks one rule at one place of the code. An engine has at most one, which is set when the engine is built; there is
//! no global switch. Without the feature `mutants`, [`Planted`] is empty and [`Planted::is`] is a constant, so the broken branch is
//! not compiled. With the feature, an engine without a mutant behaves as in a build without the feature.

/// A rule to break.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Mutant {
    /// Soft sync leaves out the waits of every third instruction of a stream, but continues as if they were there.
    WaitDropped,
    /// Soft sync waits for a stream other than the one that the need names.
    WrongSource,
    /// A record is placed before the instruction whose point it marks, instead of after it.
    RecordBefore,
    /// A stream that is held back records after the instruction that is held back, instead of before it.
    RecordBehindHeld,
    /// A block is handed out without the accesses of its former allocations.
    ReuseWithoutSync,
    /// A freed block loses its pending accesses, as if they had passed.
    ReturnedEarly,
    /// Every other read of a resource is not noted.
    LastUseNotUpdated,
    /// Every other use of a part of a storage has no needs, as if it overlapped no other use.
    PartsApart,
    /// A wait merges the source's current clock, instead of the clock that the source had at the awaited point.
    ClockTooFar,
    /// An instruction is dispatched before its host waits have passed.
    HostWaitMet,
    /// Every second instruction of an ordered stream does the work of the next one, which does its work: the stream runs out of order.
    StreamReordered,
    /// An instruction is published as passed before its outcome is recorded and its captures are dropped.
    NotifiedBeforePublished,
    /// An instruction that reads a failed resource is skipped, but does not mark its own writes as failed.
    PoisonNotCarried,
}

impl Mutant {
    /// All mutants.
    pub const ALL: [Mutant; 13] = [
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
        Mutant::StreamReordered,
        Mutant::NotifiedBeforePublished,
        Mutant::PoisonNotCarried,
    ];
}

/// The mutant that one engine has; none by default.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Planted {
    #[cfg(feature = "mutants")]
    mutant: Option<Mutant>,
}

impl Planted {
    /// A plan to break the rule of `mutant`.
    #[cfg(feature = "mutants")]
    pub const fn new(mutant: Mutant) -> Planted {
        Planted { mutant: Some(mutant) }
    }

    /// Whether the engine has this mutant.
    #[cfg(feature = "mutants")]
    #[inline]
    pub fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether the engine has this mutant: never, in this build.
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
