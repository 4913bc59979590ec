//! Steps: five bytes, of which the first selects the action.

/// One step of a program. The first byte selects the action, the others its tensors, options and timing.
pub type Step = [u8; 5];

/// The action of a step.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    HostTensor,
    Fill,
    Allocate,
    Copy,
    Unary,
    Binary,
    MatMul,
    InPlace,
    WritePart,
    CopyPart,
    CopyInto,
    Release,
    Drop,
    Function,
    Variable,
    Push,
    Fail,
    Barrier,
    Events,
    Touch,
    WaitAll,
    EmptyCache,
    Look,
}

/// The weight of each action, in parts of 256.
const WEIGHTS: [(Action, u8); 23] = [
    (Action::HostTensor, 14),
    (Action::Fill, 12),
    (Action::Allocate, 8),
    (Action::Copy, 20),
    (Action::Unary, 18),
    (Action::Binary, 20),
    (Action::MatMul, 10),
    (Action::InPlace, 20),
    (Action::WritePart, 14),
    (Action::CopyPart, 12),
    (Action::CopyInto, 12),
    (Action::Release, 8),
    (Action::Drop, 14),
    (Action::Function, 18),
    (Action::Variable, 14),
    (Action::Push, 14),
    (Action::Fail, 5),
    (Action::Barrier, 4),
    (Action::Events, 7),
    (Action::Touch, 3),
    (Action::WaitAll, 2),
    (Action::EmptyCache, 2),
    (Action::Look, 5),
];

/// The action that the first byte of a step selects.
pub(crate) fn action(byte: u8) -> Action {
    let mut left = byte;
    for (action, weight) in WEIGHTS {
        match left.checked_sub(weight) {
            Some(rest) => left = rest,
            None => return action,
        }
    }
    Action::Look
}

/// A program as text, one step a line.
pub(crate) fn described(program: &[Step]) -> String {
    let lines: Vec<String> = program.iter().map(|step| format!("{:?} {step:?}", action(step[0]))).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_make_up_all_bytes() {
        assert_eq!(WEIGHTS.iter().map(|(_, weight)| u32::from(*weight)).sum::<u32>(), 256);
        assert!((0..=255).map(action).filter(|found| *found == Action::Fail).count() == 5);
    }
}
