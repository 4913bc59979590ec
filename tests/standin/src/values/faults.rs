//! Faults on demand: driver calls that fail, and kernels that fail or are slow.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::values::code::Code;

/// A fault to inject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `fail=FUNCTION:NTH:CODE`: the nth call of a driver function (`*`: every call), counted from 1, does nothing and returns a code. A
    /// code that ends a context ends it. `ignore=FUNCTION:NTH`: the same with the code of success, so that a test can leave out a call.
    Fail { function: String, at: Trigger, code: Code },
    /// `illegal=NTH` or `illegal=NTH@DEVICE`: the nth kernel, of this device or of all devices, counted from 1, makes an illegal memory
    /// access. From then on everything in its context fails.
    Illegal { kernel: u64, device: Option<usize> },
    /// `hang=FUNCTION`: calls of a driver function do not return.
    Hang { function: String },
    /// `slow=NTH:MILLISECONDS`: the nth kernel of all devices takes this much longer.
    Slow { kernel: u64, milliseconds: u64 },
}

/// The calls that fail.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// The call with this number, counted from 1.
    Nth(u64),
    /// Every call.
    Every,
}

impl Fault {
    /// Parses the fault `name=value`.
    pub(crate) fn parse(name: &str, value: &str) -> Option<Fault> {
        let count = |text: &str| text.parse::<u64>().ok().filter(|&count| count > 0);
        match name {
            "fail" => {
                let mut parts = value.split(':');
                let (function, at, code) = (parts.next()?, parts.next()?, parts.next()?);
                let at = if at == "*" { Trigger::Every } else { Trigger::Nth(count(at)?) };
                parts.next().is_none().then_some(())?;
                Some(Fault::Fail { function: function.to_owned(), at, code: Code::parse(code)? })
            }
            "ignore" => {
                let (function, at) = value.split_once(':')?;
                let at = if at == "*" { Trigger::Every } else { Trigger::Nth(count(at)?) };
                Some(Fault::Fail { function: function.to_owned(), at, code: Code(0) })
            }
            "illegal" => {
                let (kernel, device) = match value.split_once('@') {
                    Some((kernel, device)) => (kernel, Some(device.parse().ok()?)),
                    None => (value, None),
                };
                Some(Fault::Illegal { kernel: count(kernel)?, device })
            }
            "hang" => Some(Fault::Hang { function: value.to_owned() }),
            "slow" => {
                let (kernel, milliseconds) = value.split_once(':')?;
                Some(Fault::Slow { kernel: count(kernel)?, milliseconds: milliseconds.parse().ok()? })
            }
            _ => None,
        }
    }
}

/// The faults of one kernel.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelFate {
    pub(crate) illegal: bool,
    pub(crate) milliseconds: u64,
}

/// The pending faults, and the counts that trigger them. A fault counts from the time at which it was added.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: HashMap<&'static str, u64>,
    kernels: u64,
    kernels_of: HashMap<usize, u64>,
    armed: Vec<Armed>,
}

/// A fault, with the count that triggers it.
#[derive(Debug)]
struct Armed {
    fault: Fault,
    due: u64,
}

impl Faults {
    pub(crate) fn new(faults: &[Fault]) -> Faults {
        let new = Faults::default();
        faults.iter().for_each(|fault| new.add(fault.clone()));
        new
    }

    /// Adds a fault, which counts from now on.
    pub(crate) fn add(&self, fault: Fault) {
        let mut state = self.lock();
        let due = match &fault {
            Fault::Fail { function, at: Trigger::Nth(nth), .. } => state.called(function) + nth,
            Fault::Fail { .. } | Fault::Hang { .. } => 0,
            Fault::Illegal { kernel, device: Some(device) } => {
                state.kernels_of.get(device).copied().unwrap_or(0) + kernel
            }
            Fault::Illegal { kernel, .. } | Fault::Slow { kernel, .. } => state.kernels + kernel,
        };
        state.armed.push(Armed { fault, due });
    }

    /// Counts a call of a driver function. Returns the code of a fault, with which the call must return at once.
    pub(crate) fn call(&self, name: &'static str) -> Option<Code> {
        let mut state = self.lock();
        let count = state.calls.entry(name).or_default();
        *count += 1;
        let count = *count;
        if state.armed.iter().any(|armed| matches!(&armed.fault, Fault::Hang { function } if function == name)) {
            drop(state);
            loop {
                std::thread::park();
            }
        }
        state.armed.iter().find_map(|armed| match &armed.fault {
            Fault::Fail { function, at, code } if function == name => {
                (*at == Trigger::Every || armed.due == count).then_some(*code)
            }
            _ => None,
        })
    }

    /// Counts a kernel that is launched on a device, and returns its faults.
    pub(crate) fn kernel(&self, on: usize) -> KernelFate {
        let mut state = self.lock();
        state.kernels += 1;
        let all = state.kernels;
        let here = state.kernels_of.entry(on).or_default();
        *here += 1;
        let here = *here;
        let mut fate = KernelFate::default();
        for armed in &state.armed {
            match armed.fault {
                Fault::Illegal { device: None, .. } => fate.illegal |= armed.due == all,
                Fault::Illegal { device: Some(device), .. } => fate.illegal |= device == on && armed.due == here,
                Fault::Slow { milliseconds, .. } if armed.due == all => fate.milliseconds += milliseconds,
                _ => {}
            }
        }
        fate
    }

    /// Number of calls of a driver function.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.lock().called(name)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Every change is a single step, so the state is consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn called(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_fails_and_no_other() {
        let faults = Faults::new(&[Fault::parse("fail", "cuInit:2:999").unwrap()]);
        let outcomes: Vec<_> = (0..3).map(|_| faults.call("cuInit")).collect();
        assert_eq!(outcomes, [None, Some(Code::UNKNOWN), None]);
        assert_eq!((faults.call("cuMemAlloc_v2"), faults.calls("cuInit")), (None, 3));
    }

    #[test]
    fn a_call_that_is_left_out_succeeds() {
        let faults = Faults::new(&[Fault::parse("ignore", "cuEventRecord:2").unwrap()]);
        let outcomes: Vec<_> = (0..3).map(|_| faults.call("cuEventRecord")).collect();
        assert_eq!(outcomes, [None, Some(Code(0)), None]);
        assert_eq!(Fault::parse("ignore", "cuEventRecord"), None);
    }

    #[test]
    fn a_fault_that_comes_later_counts_from_then() {
        let faults = Faults::new(&[]);
        faults.call("cuInit");
        faults.add(Fault::parse("fail", "cuInit:1:2").unwrap());
        assert_eq!([faults.call("cuInit"), faults.call("cuInit")], [Some(Code::OUT_OF_MEMORY), None]);
    }

    #[test]
    fn kernels_are_counted_per_device_where_one_is_named() {
        let faults = Faults::new(&[
            Fault::parse("illegal", "2@1").unwrap(),
            Fault::parse("slow", "2:9").unwrap(),
            Fault::parse("slow", "2:1").unwrap(),
        ]);
        let quiet = KernelFate::default();
        assert_eq!([faults.kernel(1), faults.kernel(0)], [quiet, KernelFate { illegal: false, milliseconds: 10 }]);
        assert_eq!([faults.kernel(1), faults.kernel(1)], [KernelFate { illegal: true, milliseconds: 0 }, quiet]);
    }
}
