//! The kernel that sets the condition of a block in a CUDA graph, and the memory that it shares with the host.
//!
//! A *conditional node* of a graph runs its body as often as the value of a *handle* says, which only a kernel in the graph can set. This kernel reads the
//! bool that a step of the program has computed and sets the handle. At a loop it also counts the round that begins, and ends the loop where the host would
//! end it: after the most rounds that a run may make, and when the engine stops loops. Once a loop has ended so, no condition is true any longer, so the
//! launch is soon over; the host finds the reason in the [`LoopState`].
//!
//! The kernel has a module of its own, `kernels/condition.ptx`: the call that sets a handle needs a newer driver than all other kernels.

use std::ffi::CStr;

/// The name of the kernel.
pub const CONDITION_NAME: &str = "streamvm_condition";

/// Its module, in PTX.
pub const CONDITION_PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../kernels/condition.ptx"), "\0").as_bytes()) {
        Ok(ptx) => ptx,
        Err(_) => panic!("the text has no NUL in it"),
    };

/// Its parameter. Addresses are those of the device.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ConditionArguments {
    /// The handle that is set, to 1 or 0.
    pub handle: u64,
    /// The address of the condition, a bool.
    pub condition: u64,
    /// The address of the [`LoopState`], in memory of the device; 0 in a graph without loops.
    pub state: u64,
    /// The address of a `u32` in page-locked memory: not 0 once loops must end.
    pub stop: u64,
    /// The rounds that all loops of a run may make.
    pub most_rounds: u64,
    /// The step that begins the block, for [`LoopState::step`].
    pub step: u32,
    /// How the kernel decides: [`IF`](ConditionArguments::IF), [`ELSE`](ConditionArguments::ELSE) or [`WHILE`](ConditionArguments::WHILE).
    pub test: u32,
}

impl ConditionArguments {
    /// A [`test`](ConditionArguments::test): whether the condition is true.
    pub const IF: u32 = 0;
    /// Whether it is false.
    pub const ELSE: u32 = 1;
    /// Whether it is true, and the loop may make another round.
    pub const WHILE: u32 = 2;
}

/// How far the loops of a run are.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LoopState {
    /// The rounds that they have begun.
    pub rounds: u64,
    /// Why a loop has ended although its condition was true: see the constants.
    pub ended: u32,
    /// The step of that loop.
    pub step: u32,
}

impl LoopState {
    /// An [`ended`](LoopState::ended): no loop has.
    pub const FINE: u32 = 0;
    /// The loops would have made too many rounds.
    pub const MOST_ROUNDS: u32 = 1;
    /// The host has stopped loops.
    pub const STOPPED: u32 = 2;
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn what_the_kernel_is_given_is_laid_out_as_it_reads_it() {
        let at = [
            offset_of!(ConditionArguments, handle),
            offset_of!(ConditionArguments, condition),
            offset_of!(ConditionArguments, state),
            offset_of!(ConditionArguments, stop),
            offset_of!(ConditionArguments, most_rounds),
            offset_of!(ConditionArguments, step),
            offset_of!(ConditionArguments, test),
        ];
        assert_eq!((at, size_of::<ConditionArguments>()), ([0, 8, 16, 24, 32, 40, 44], 48));
        let state = [offset_of!(LoopState, rounds), offset_of!(LoopState, ended), offset_of!(LoopState, step)];
        assert_eq!((state, size_of::<LoopState>()), ([0, 8, 12], 16));
        let text = CONDITION_PTX.to_str().unwrap();
        assert!(text.contains(&format!(".entry {CONDITION_NAME}(")) && text.contains("arguments[48]"));
    }
}
