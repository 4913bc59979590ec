//! Kernels of a caller's own. No declaration says which memory they access, so the names of their parameters do:
//!
//! | parameter | meaning |
//! |---|---|
//! | `read_<name>`, `write_<name>` | the address of memory that the kernel reads, or writes |
//! | `bytes_<name>` | how many bytes from there on |
//! | `times_<name>`, `step_<name>` | how often there are so many bytes, and from each to the next; if there are none, once |
//! | any other name | a number |

use std::ops::Range;

use streamvm_ep::Access;
use streamvm_ptx::Module;

/// A kernel of a caller's own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnKernel {
    pub(crate) name: String,
    /// The name and the bytes of each parameter.
    pub(crate) parameters: Vec<(String, Range<usize>)>,
}

/// Memory that such a kernel accesses.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    /// The parameter that has its address.
    pub(crate) parameter: String,
    /// Its addresses, from low to high.
    pub(crate) runs: Vec<Range<usize>>,
    pub(crate) access: Access,
}

impl OwnKernel {
    /// The kernel of this name, if the names of its parameters say which memory it accesses.
    pub(crate) fn of(module: &Module, name: &str) -> Option<OwnKernel> {
        let parameters = module.parameters(name).to_vec();
        let kernel = OwnKernel { name: name.to_owned(), parameters };
        kernel.memory(&[0; 4096]).ok().filter(|memory| !memory.is_empty())?;
        Some(kernel)
    }

    /// All bytes of the parameters.
    pub(crate) fn bytes(&self) -> usize {
        self.parameters.last().map_or(0, |(_, range)| range.end)
    }

    /// The memory that a launch with these parameters accesses.
    pub(crate) fn memory(&self, parameters: &[u8]) -> Result<Vec<OwnMemory>, String> {
        let number = |wanted: &str| {
            let (_, range) = self.parameters.iter().find(|(name, _)| name == wanted).ok_or(format!("no `{wanted}`"))?;
            let bytes = parameters.get(range.clone()).and_then(|bytes| bytes.try_into().ok());
            bytes.map(usize::from_le_bytes).ok_or(format!("`{wanted}` has other than 64 bits"))
        };
        let mut memory = Vec::new();
        for (name, _) in &self.parameters {
            let (access, rest) = match (name.strip_prefix("read_"), name.strip_prefix("write_")) {
                (Some(rest), _) => (Access::Read, rest),
                (_, Some(rest)) => (Access::ReadWrite, rest),
                _ => continue,
            };
            let (address, bytes) = (number(name)?, number(&format!("bytes_{rest}"))?);
            let has_steps = self.parameters.iter().any(|(name, _)| *name == format!("times_{rest}"));
            let times = if has_steps { number(&format!("times_{rest}"))? } else { 1 };
            let step = if has_steps { number(&format!("step_{rest}"))? } else { 0 };
            let run = |time: usize| {
                let start = address.saturating_add(time.saturating_mul(step));
                start..start.saturating_add(bytes)
            };
            let runs = (0..times).map(run).filter(|run| !run.is_empty()).collect();
            memory.push(OwnMemory { parameter: name.clone(), runs, access });
        }
        Ok(memory)
    }
}
