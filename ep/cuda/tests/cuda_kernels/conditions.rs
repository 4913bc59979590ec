//! The kernel that sets conditions of blocks, as PTX, beside what it must compute.
//!
//! The function that sets a condition is the driver's. That of the interpreter stores the value at the address that is given as the handle.

use streamvm_cuda::{CONDITION_NAME, CONDITION_PTX, ConditionArguments, LoopState};
use streamvm_ptx::{Access, Coverage, Launch, Memory, Module};

/// A module of this text.
fn module(text: &str) -> Module {
    Module::new(text).expect("the interpreter knows its instructions")
}

/// A launch of the kernel.
#[derive(Copy, Clone, Debug)]
struct Case {
    test: u32,
    most_rounds: u64,
    is_true: u8,
    stops: u32,
    /// `None` in a graph without loops.
    state: Option<LoopState>,
}

/// The value to which the kernel sets the condition, and the state of loops after its launch, the default one if it was given none. `None` if the kernel makes an
/// access that is not allowed.
fn run(module: &Module, coverage: &mut Coverage, case: &Case) -> Option<(u32, LoopState)> {
    let Case { test, most_rounds, is_true, stops, state } = *case;
    let (handle, condition, at_state, stop) = (0x1000_0000u64, 0x2000_0003u64, 0x3000_0000u64, 0x4000_0000u64);
    let mut memory = Memory::new();
    let set = memory.add("the condition of the node", handle, vec![9; 4], Access::ReadWrite);
    memory.add("the condition", condition, vec![is_true], Access::Read);
    let left = state.map(|state| {
        let bytes =
            [state.rounds.to_le_bytes().to_vec(), state.ended.to_le_bytes().into(), state.step.to_le_bytes().into()];
        memory.add("the state", at_state, bytes.concat(), Access::ReadWrite)
    });
    let at_state = if state.is_some() { at_state } else { 0 };
    memory.add("what stops loops", stop, stops.to_le_bytes().into(), Access::Read);
    let of_u64 = [handle, condition, at_state, stop, most_rounds].map(u64::to_le_bytes).concat();
    let parameters = [of_u64, [7u32, test].map(u32::to_le_bytes).concat()].concat();
    assert_eq!(parameters.len(), size_of::<ConditionArguments>());
    let (grid, block) = ([1; 3], [1; 3]);
    let launch =
        Launch { kernel: CONDITION_NAME, grid, block, shared_bytes: 0, parameters: &parameters, seed: 1, limit: 1000 };
    module.launch(&launch, &mut memory, coverage).ok()?;
    let left = left.map_or([0; 16].as_slice(), |left| memory.bytes(left));
    let of = |from: usize| u32::from_le_bytes(left[from..from + 4].try_into().expect("four bytes"));
    let rounds = u64::from_le_bytes(left[..8].try_into().expect("eight bytes"));
    let set = u32::from_le_bytes(memory.bytes(set).try_into().expect("four bytes"));
    Some((set, LoopState { rounds, ended: of(8), step: of(12) }))
}

/// Launches with what they must set and leave.
fn cases() -> Vec<(Case, (u32, LoopState))> {
    const { assert!(ConditionArguments::IF == 0 && ConditionArguments::ELSE == 1 && ConditionArguments::WHILE == 2) }
    let fine = |rounds| LoopState { rounds, ..LoopState::default() };
    let mut cases = Vec::new();
    for (is_true, taken) in [(0, 0), (1, 1), (255, 1)] {
        // A branch is not counted and not stopped.
        for (test, taken) in [(ConditionArguments::IF, taken), (ConditionArguments::ELSE, 1 - taken)] {
            let case = |state| Case { test, most_rounds: 0, is_true, stops: 1, state };
            cases.push((case(Some(fine(5))), (taken, fine(5))));
            cases.push((case(None), (taken, fine(0))));
        }
    }
    let ended = |rounds, ended| LoopState { rounds, ended, step: 7 };
    let far = 1 << 40;
    for (most_rounds, is_true, stops, rounds, expected) in [
        (6, 1, 0, 5, (1, fine(6))),
        (6, 0, 1, 6, (0, fine(6))),
        (6, 1, 0, 6, (0, ended(7, LoopState::MOST_ROUNDS))),
        (0, 1, 0, 0, (0, ended(1, LoopState::MOST_ROUNDS))),
        (6, 1, 1, 5, (0, ended(5, LoopState::STOPPED))),
        // More than 32 bits.
        (far, 1, 0, far - 1, (1, fine(far))),
        (far, 1, 0, far, (0, ended(far + 1, LoopState::MOST_ROUNDS))),
        (u64::MAX, 1, 0, u64::MAX - 1, (1, fine(u64::MAX))),
    ] {
        let (test, state) = (ConditionArguments::WHILE, Some(fine(rounds)));
        cases.push((Case { test, most_rounds, is_true, stops, state }, expected));
    }
    // Once a loop was ended, nothing runs.
    let over = LoopState { rounds: 3, ended: LoopState::STOPPED, step: 2 };
    for test in [ConditionArguments::IF, ConditionArguments::ELSE, ConditionArguments::WHILE] {
        for is_true in [0, 1] {
            cases.push((Case { test, most_rounds: 9, is_true, stops: 0, state: Some(over) }, (0, over)));
        }
    }
    cases
}

#[test]
fn conditions_are_set_as_the_steps_and_the_limits_of_loops_say() {
    let module = module(CONDITION_PTX.to_str().expect("text"));
    let mut coverage = Coverage::new(&module);
    for (case, expected) in cases() {
        assert_eq!(run(&module, &mut coverage, &case), Some(expected), "{case:?}");
    }
    let (reached, all) = coverage.counts(&module);
    assert_eq!(reached, all, "instructions that were not reached");
}

/// Each of these defects makes a difference to at least one of the launches.
#[test]
fn a_kernel_with_a_defect_is_found() {
    let text = CONDITION_PTX.to_str().expect("text");
    for (from, to) in [
        ("setp.le.u64", "setp.lt.u64"),
        ("and.pred %p1, %p1, %p3", "and.pred %p1, %p1, %p1"),
        ("setp.eq.u32 %p2, %r2, 1", "setp.eq.u32 %p2, %r2, 3"),
        ("mov.u32 %r5, 2", "mov.u32 %r5, 1"),
        ("add.s64 %rd10, %rd9, 1", "add.s64 %rd10, %rd9, 2"),
        ("st.global.u64 [%rd7], %rd10", "st.global.u64 [%rd7], %rd9"),
        ("st.global.u32 [%rd7+12], %r1", "st.global.u32 [%rd7+12], %r2"),
        ("@!%p4 bra SET", "@%p4 bra SET"),
        ("@%p7 ld.global.u32", "ld.global.u32"),
        ("setp.ne.s64 %p7, %rd3, 0", "setp.eq.s64 %p7, %rd3, 0"),
        ("mov.u32 %r3, 0", "mov.u32 %r3, 1"),
        ("@%p5 bra ENDED", "@!%p5 bra ENDED"),
        ("selp.u32 %r6, 1, 0, %p1", "selp.u32 %r6, 0, 1, %p1"),
        ("call.uni cudaGraphSetConditional, (param0, param1);", ""),
    ] {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        let module = module(&text.replace(from, to));
        let mut coverage = Coverage::new(&module);
        let is_right = cases().iter().all(|(case, expected)| run(&module, &mut coverage, case) == Some(*expected));
        assert!(!is_right, "`{to}` in place of `{from}`");
    }
}
