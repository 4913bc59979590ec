//! The kernel that sets conditions of blocks, as PTX, beside what it must compute.
//!
//! The function that sets a condition is the driver's. Here it is one that stores the value at the address that is given as the handle.

use streamvm_ep::cuda::{CONDITION_NAME, CONDITION_PTX, ConditionArguments, LoopState};
use streamvm_ptx::{Access, Coverage, Launch, Memory, Module};

/// In the place of the driver's function.
const SETS: &str = "
.func cudaGraphSetConditional(
	.param .b64 cudaGraphSetConditional_param_0,
	.param .b32 cudaGraphSetConditional_param_1
)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [cudaGraphSetConditional_param_0];
	ld.param.u32 %r1, [cudaGraphSetConditional_param_1];
	st.global.u32 [%rd1], %r1;
	ret;
}
";

/// The module with that function.
fn module() -> Module {
    let text = CONDITION_PTX.to_str().expect("text");
    let (before, rest) = text.split_once(".extern .func cudaGraphSetConditional").expect("it is declared");
    let (_, behind) = rest.split_once("\n;\n").expect("the declaration has an end");
    Module::new(&format!("{before}{SETS}{behind}")).expect("the interpreter knows its instructions")
}

/// What the kernel sets, and the state that it leaves.
fn run(
    module: &Module,
    coverage: &mut Coverage,
    (test, most_rounds): (u32, u64),
    is_true: u8,
    stops: u32,
    state: LoopState,
) -> (u32, LoopState) {
    let (handle, condition, at_state, stop) = (0x1000_0000u64, 0x2000_0003u64, 0x3000_0000u64, 0x4000_0000u64);
    let mut memory = Memory::new();
    let set = memory.add("the condition of the node", handle, vec![9; 4], Access::ReadWrite);
    memory.add("the condition", condition, vec![is_true], Access::Read);
    let bytes =
        [state.rounds.to_le_bytes().to_vec(), state.ended.to_le_bytes().into(), state.step.to_le_bytes().into()];
    let left = memory.add("the state", at_state, bytes.concat(), Access::ReadWrite);
    memory.add("what stops loops", stop, stops.to_le_bytes().into(), Access::Read);
    let of_u64 = [handle, condition, at_state, stop, most_rounds].map(u64::to_le_bytes).concat();
    let parameters = [of_u64, [7u32, test].map(u32::to_le_bytes).concat()].concat();
    assert_eq!(parameters.len(), size_of::<ConditionArguments>());
    let (grid, block) = ([1; 3], [1; 3]);
    let launch =
        Launch { kernel: CONDITION_NAME, grid, block, shared_bytes: 0, parameters: &parameters, seed: 1, limit: 1000 };
    module.launch(&launch, &mut memory, coverage).expect("it runs");
    let left = memory.bytes(left);
    let of = |from: usize| u32::from_le_bytes(left[from..from + 4].try_into().expect("four bytes"));
    let rounds = u64::from_le_bytes(left[..8].try_into().expect("eight bytes"));
    let set = u32::from_le_bytes(memory.bytes(set).try_into().expect("four bytes"));
    (set, LoopState { rounds, ended: of(8), step: of(12) })
}

#[test]
fn conditions_are_set_as_the_steps_and_the_limits_of_loops_say() {
    let module = module();
    let mut coverage = Coverage::new(&module);
    let fine = |rounds| LoopState { rounds, ..LoopState::default() };
    let mut check = |test: (u32, u64), is_true, stops, state, expected| {
        let found = run(&module, &mut coverage, test, is_true, stops, state);
        assert_eq!(found, expected, "{test:?}, {is_true}, {stops}, {state:?}");
    };
    for (is_true, taken) in [(0, 0), (1, 1), (255, 1)] {
        // A branch is not counted and not stopped.
        check((ConditionArguments::IF, 0), is_true, 1, fine(5), (taken, fine(5)));
        check((ConditionArguments::ELSE, 0), is_true, 1, fine(5), (1 - taken, fine(5)));
    }
    let repeats = |most_rounds| (ConditionArguments::WHILE, most_rounds);
    let ended = |rounds, ended| LoopState { rounds, ended, step: 7 };
    check(repeats(6), 1, 0, fine(5), (1, fine(6)));
    check(repeats(6), 0, 1, fine(6), (0, fine(6)));
    check(repeats(6), 1, 0, fine(6), (0, ended(7, LoopState::MOST_ROUNDS)));
    check(repeats(0), 1, 0, fine(0), (0, ended(1, LoopState::MOST_ROUNDS)));
    check(repeats(6), 1, 1, fine(5), (0, ended(5, LoopState::STOPPED)));
    // More than 32 bits.
    let most = 1 << 40;
    check(repeats(most), 1, 0, fine(most - 1), (1, fine(most)));
    check(repeats(most), 1, 0, fine(most), (0, ended(most + 1, LoopState::MOST_ROUNDS)));
    check(repeats(u64::MAX), 1, 0, fine(u64::MAX - 1), (1, fine(u64::MAX)));
    // Once a loop was ended, nothing runs.
    let over = LoopState { rounds: 3, ended: LoopState::STOPPED, step: 2 };
    for test in [ConditionArguments::IF, ConditionArguments::ELSE, ConditionArguments::WHILE] {
        for is_true in [0, 1] {
            check((test, 9), is_true, 0, over, (0, over));
        }
    }
    let (reached, all) = coverage.counts(&module);
    assert_eq!(reached, all, "instructions that were not reached");
}
