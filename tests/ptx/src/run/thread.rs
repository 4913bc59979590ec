//! The state of one thread.

use crate::code::operation::Call;
use crate::code::{CALLS, LOCAL, Module};
use crate::run::fault::FaultKind;
use crate::run::memory::{Access, Block};

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// The operation after the barrier is the next one.
    AtBarrier,
    Over,
}

/// A function that waits for one that it called: where it goes on, and the call.
struct Caller {
    next: usize,
    function: usize,
    call: usize,
}

pub(super) struct Thread {
    /// Its number in the block.
    pub(super) number: u32,
    pub(super) state: State,
    /// The next operation.
    pub(super) next: usize,
    pub(super) registers: Vec<u64>,
    /// Which registers have been written.
    pub(super) known: Vec<bool>,
    pub(super) carry: Option<bool>,
    pub(super) local: Block,
    pub(super) calls: Block,
    /// Operations that it has run.
    pub(super) steps: u64,
    callers: Vec<Caller>,
}

impl Thread {
    pub(super) fn new(module: &Module) -> Thread {
        Thread {
            number: 0,
            state: State::Over,
            next: 0,
            registers: vec![0; module.registers],
            known: vec![false; module.registers],
            carry: None,
            local: Block::new("local memory", LOCAL, vec![0; module.local_bytes], Access::WriteFirst),
            calls: Block::new("the parameters of calls", CALLS, vec![0; module.call_bytes], Access::WriteFirst),
            steps: 0,
            callers: Vec::new(),
        }
    }

    /// Begins anew as a thread of the next block.
    pub(super) fn begin(&mut self, number: u32, first: usize) {
        (self.number, self.state, self.next, self.steps, self.carry) = (number, State::Ready, first, 0, None);
        self.known.fill(false);
        self.callers.clear();
        self.local.forget(0..self.local.bytes.len());
        self.calls.forget(0..self.calls.bytes.len());
    }

    /// Enters the function that the operation before the next one calls.
    pub(super) fn enter(&mut self, module: &Module, call: &Call) -> Result<(), FaultKind> {
        let function = &module.functions[call.function];
        if self.callers.iter().any(|caller| caller.function == call.function) {
            return Err(FaultKind::Recursion { function: function.name.clone() });
        }
        // Nothing is left of an earlier call.
        self.known[function.registers.clone()].fill(false);
        self.local.forget(function.local.clone());
        self.calls.forget(function.calls.clone());
        for passed in &call.arguments {
            self.pass(passed.from, passed.to, passed.bytes)?;
        }
        self.callers.push(Caller { next: self.next, function: call.function, call: self.next - 1 });
        self.next = function.code.start;
        Ok(())
    }

    /// Ends the function that runs: with the results to its caller, or the thread.
    pub(super) fn leave(&mut self, module: &Module) -> Result<(), FaultKind> {
        let Some(caller) = self.callers.pop() else {
            self.state = State::Over;
            return Ok(());
        };
        if let crate::code::operation::Action::Call(call) = &module.operations[caller.call].action {
            for passed in &call.results {
                self.pass(passed.from, passed.to, passed.bytes)?;
            }
        }
        self.next = caller.next;
        Ok(())
    }

    fn pass(&mut self, from: u64, to: u64, bytes: usize) -> Result<(), FaultKind> {
        for at in 0..bytes as u64 {
            let byte = self.calls.read(from + at, 1, None)?;
            self.calls.write(to + at, 1, byte, None)?;
        }
        Ok(())
    }
}
