//! [`Mode`]: which threads run instructions, chosen in code or in the environment (`docs/adr/modes.md`).

use std::env;

use streamvm_instructions::Error;

/// Which threads run instructions. A program computes the same in each mode.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Threads of the engine run instructions asynchronously.
    #[default]
    Threaded,
    /// Submitting threads run each instruction to completion, in program order. A submission returns after all its instructions
    /// have passed: its own thread ran them, or another submitting thread that held the run lock. A submission from within a
    /// function or a callback may return before its instructions have run. For debugging, and as the reference that tests compare
    /// the other modes with.
    Inline,
    /// Callers that wait step the engine: one step of the scheduler, a thread context, a worker, the completion or a simulated
    /// device at a time, in an order drawn from the seed. The same program with the same seed runs the same way. Callbacks run
    /// in the calling thread, before the call that registers them returns.
    Simulated {
        /// The seed of the order.
        seed: u64,
    },
}

/// The environment variable that chooses mode and workers.
const VARIABLE: &str = "STREAMVM_ENGINE";

/// The choice that the environment variable makes: the mode, and whether all devices and pools share their workers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) mode: Mode,
    pub(crate) shared_workers: bool,
}

impl Mode {
    /// The mode that the environment variable `STREAMVM_ENGINE` chooses: [`Mode::Inline`] for `inline`, [`Mode::Threaded`] for
    /// `shared` and `per-device`; `None` if it is unset or empty. For programs that want to refuse a wrong value, or to know the mode,
    /// before they build an engine; [`VmBuilder::build`](crate::VmBuilder::build) reads the variable by itself. A program that passes
    /// the result to [`VmBuilder::mode`](crate::VmBuilder::mode) drops the shared workers that `shared` asks for.
    ///
    /// # Errors
    /// [`Error::UnknownEngine`] if the variable has another value.
    pub fn of_environment() -> Result<Option<Mode>, Error> {
        Ok(Choice::of_environment()?.map(|choice| choice.mode))
    }
}

impl Choice {
    /// What `STREAMVM_ENGINE` chooses; `None` if it is unset or empty.
    pub(crate) fn of_environment() -> Result<Option<Choice>, Error> {
        let choice = named(&env::var_os(VARIABLE).unwrap_or_default().to_string_lossy())?;
        if let Some(choice) = choice {
            log::debug!("{VARIABLE} asks for {choice:?}");
        }
        Ok(choice)
    }
}

fn named(name: &str) -> Result<Option<Choice>, Error> {
    let (mode, shared_workers) = match name {
        "" => return Ok(None),
        "inline" => (Mode::Inline, false),
        "shared" => (Mode::Threaded, true),
        "per-device" => (Mode::Threaded, false),
        other => return Err(Error::UnknownEngine { variable: VARIABLE, found: other.to_owned() }),
    };
    Ok(Some(Choice { mode, shared_workers }))
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_choice_or_an_error_that_lists_all_of_them() {
        let refused = |name: &str| named(name).expect_err("nothing has this name").to_string();
        let text = refused("naive");
        for (name, mode, shared_workers) in
            [("inline", Mode::Inline, false), ("shared", Mode::Threaded, true), ("per-device", Mode::Threaded, false)]
        {
            assert_eq!(named(name), Ok(Some(Choice { mode, shared_workers })));
            assert!(text.contains(name), "{text}");
            assert!(refused(&name.to_uppercase()).contains(name));
        }
        assert!(text.contains("STREAMVM_ENGINE is \"naive\""), "{text}");
        assert_eq!(named(""), Ok(None));
    }
}
