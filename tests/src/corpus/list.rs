//! Checks instruction lists that are read from text, and runs them as programs.

use streamvm::{DeviceId, Error, InstructionList, Mode, PlanOptions, Vm, plan};

/// Parses a list, prints it, and parses it again: both lists must be equal. The same must hold for the planned list.
pub(super) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let list = match InstructionList::parse(text) {
        Ok(list) => list,
        Err(error) => {
            assert!(error.line >= 1 && error.line <= text.lines().count().max(1), "{error} is outside of the text");
            assert!(error.to_string().len() < 4096, "an error is a line, not a text");
            return;
        }
    };
    let printed = reads_back(&list, text);
    // A plan prints the instructions that it was made from, with waits and records between them, and is a list like any other.
    if let Ok(planned) = plan(list, &PlanOptions::default()) {
        let instructions: u64 = planned.counts.iter().map(|counts| counts.instructions).sum();
        assert!(planned.list.len() as u64 >= instructions, "a plan lost instructions of\n{printed}");
        reads_back(&planned.list, &printed);
    }
}

fn reads_back(list: &InstructionList, source: &str) -> String {
    let printed = list.to_string();
    let again = InstructionList::parse(&printed)
        .unwrap_or_else(|error| panic!("{error}, in what was printed:\n{printed}\nread from:\n{source}"));
    assert_eq!(again.to_string(), printed, "read from:\n{source}");
    assert_eq!(again.len(), list.len());
    printed
}

/// Most elements of a tensor in a program that is run: the kernels are not under test here.
const MOST_ELEMENTS: usize = 4096;

/// Most instructions of such a program.
const MOST_INSTRUCTIONS: usize = 64;

/// Memory of each place of the engine, in bytes.
const MEMORY: u64 = 1 << 20;

/// Submits a list to an inline engine: it must be refused or run, and the engine must work afterwards.
pub(super) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(list) = InstructionList::parse(text) else { return };
    let small = |list: &InstructionList| {
        let uses = list.instructions().iter().flat_map(|instruction| list.uses(instruction));
        let mut tensors = uses.filter_map(|used| used.as_tensor());
        tensors.all(|tensor| tensor.shape().elements() <= MOST_ELEMENTS)
    };
    if list.len() > MOST_INSTRUCTIONS || !small(&list) {
        return;
    }
    let engine = Vm::builder().mode(Mode::Inline).cpu_devices(2).cpu_memory_limit(MEMORY).host_memory_limit(MEMORY);
    let vm = engine.build().expect("an inline engine starts no thread");
    match vm.submit(list) {
        Ok(ticket) => match ticket.wait() {
            Ok(()) | Err(Error::Failed(_)) => {}
            Err(error) => panic!("a list that was taken neither passed nor failed: {error}\n{text}"),
        },
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let fine = vm.from_slice(&[1.5_f32, 2.5], &[2]).and_then(|tensor| tensor.to(DeviceId::cpu(0)));
    match fine.and_then(|tensor| tensor.to_vec::<f32>()) {
        Ok(values) => assert_eq!(values, [1.5, 2.5], "after\n{text}"),
        // The tensors of the list may exceed the memory of the engine.
        Err(Error::NoMemory { .. } | Error::OutOfMemory { .. }) => {}
        Err(error) => panic!("{error}, after\n{text}"),
    }
}
