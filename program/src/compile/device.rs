//! Pass: the device that runs all steps, and the bounds of the function that a run is.

use streamvm_ep::{DeviceId, DeviceKind, MAX_WRITES};
use streamvm_instructions::{Error, Place, ProgramError};

use crate::ir::program::{Program, Work};
use crate::plan::compiled::Compiled;

/// The only CPU device whose memory the program uses; `cpu:0` if all its values are in host memory.
///
/// # Errors
/// [`ProgramError::NotCompiled`] if values live on a device that is no CPU or on two devices, or if a step draws random numbers.
pub(super) fn find(program: &Program) -> Result<DeviceId, Error> {
    let refused = |what: String| -> Error { ProgramError::NotCompiled { program: program.name.clone(), what }.into() };
    let mut found: Option<DeviceId> = None;
    for value in &program.values {
        let Place::Device(device) = value.place else { continue };
        if device.kind != DeviceKind::Cpu {
            return Err(refused(format!("a value lives on {device}, and programs run on CPUs so far; run it eagerly")));
        }
        match found {
            Some(other) if other != device => {
                return Err(refused(format!("its values live on {other} and {device}; use one device in a program")));
            }
            _ => found = Some(device),
        }
    }
    for (number, step) in program.steps.iter().enumerate() {
        if matches!(&step.work, Work::Call(op, _) if op.is_source()) {
            return Err(refused(format!(
                "step {number} ({}) draws random numbers, which would be the same in each run; draw them outside, and feed them",
                step.work.name()
            )));
        }
    }
    Ok(found.unwrap_or(DeviceId::cpu(0)))
}

/// Checks that a run writes no more tensors than a function may.
///
/// # Errors
/// [`ProgramError::NotCompiled`].
pub(super) fn check_writes(compiled: &Compiled) -> Result<(), Error> {
    let found = compiled.buffers.iter().filter(|buffer| buffer.access.writes()).count();
    if found <= MAX_WRITES {
        return Ok(());
    }
    let what = format!(
        "a run would write {found} tensors (fetches, written parameters and the arena), and can write {MAX_WRITES}; join some, or use \
         several programs"
    );
    Err(ProgramError::NotCompiled { program: compiled.program.name.clone(), what }.into())
}
