//! What streamvm's kernel for conditions of blocks computes.

use streamvm_cuda::{ConditionArguments, LoopState};

/// Whether the body of a block runs. Counts the round that a loop begins.
pub(crate) fn decide(arguments: &ConditionArguments, is_true: bool, stops: bool, state: &mut LoopState) -> bool {
    let is_met = is_true != (arguments.test == ConditionArguments::ELSE) && state.ended == LoopState::FINE;
    if !is_met || arguments.test != ConditionArguments::WHILE {
        return is_met;
    }
    let ended = if stops {
        LoopState::STOPPED
    } else {
        state.rounds = state.rounds.wrapping_add(1);
        if state.rounds <= arguments.most_rounds {
            return true;
        }
        LoopState::MOST_ROUNDS
    };
    (state.ended, state.step) = (ended, arguments.step);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(test: u32) -> ConditionArguments {
        ConditionArguments { handle: 1, condition: 0, state: 0, stop: 0, most_rounds: 2, step: 7, test }
    }

    #[test]
    fn a_loop_ends_with_its_condition_or_after_the_most_rounds_or_when_it_is_stopped() {
        let (mut state, repeats) = (LoopState::default(), arguments(ConditionArguments::WHILE));
        let rounds: Vec<bool> =
            [true, false, true, true, true].map(|it| decide(&repeats, it, false, &mut state)).into();
        assert_eq!(rounds, [true, false, true, false, false]);
        assert_eq!(state, LoopState { rounds: 3, ended: LoopState::MOST_ROUNDS, step: 7 });
        let mut state = LoopState::default();
        assert!(!decide(&repeats, true, true, &mut state));
        assert_eq!(state, LoopState { rounds: 0, ended: LoopState::STOPPED, step: 7 });
    }

    #[test]
    fn one_of_two_branches_runs_unless_a_loop_was_ended() {
        for is_true in [true, false] {
            let branches = [ConditionArguments::IF, ConditionArguments::ELSE].map(arguments);
            let mut state = LoopState::default();
            assert_eq!(branches.map(|one| decide(&one, is_true, true, &mut state)), [is_true, !is_true]);
            state.ended = LoopState::STOPPED;
            assert_eq!(branches.map(|one| decide(&one, is_true, false, &mut state)), [false, false]);
        }
    }
}
