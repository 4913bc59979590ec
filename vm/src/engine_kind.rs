//! [`EngineKind`]: selects the engine that runs functions by one word, in code or in the environment (`docs/adr/0027`).

use std::env;

use streamvm_instructions::Error;

/// Which of three engines runs functions that are [pushed](crate::Vm::push), and lists for workers. A program computes the same on
/// each; the engines differ in the thread that runs a function, and in when it runs.
///
/// Each kind stands for settings that a program could also make one by one:
///
/// | | [`Mode`](crate::Mode) | workers |
/// |---|---|---|
/// | [`EngineKind::Inline`] | `Inline` | none |
/// | [`EngineKind::Shared`] | `Threaded` | one pool |
/// | [`EngineKind::PerDevice`] | `Threaded` | a pool for each device and [`Pool`](crate::Pool) |
///
/// Everything else runs on ordered streams, which have their own threads with `Shared` and `PerDevice` alike.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum EngineKind {
    /// The thread that pushes a function runs it before the push returns. For debugging, and for the result of a program that
    /// runs one step after the other.
    Inline,
    /// One pool of workers runs all functions, of every device and [`Pool`](crate::Pool). It has the configuration of
    /// [`Pool::Normal`](crate::Pool::Normal), by default with one worker per core; configurations of other pools have no effect.
    /// Functions for [`Pool::Urgent`](crate::Pool::Urgent) run there with [`Priority::High`](crate::Priority::High).
    Shared,
    /// Each device has workers of its own for each [`Pool`](crate::Pool) that is used, so a busy device or pool does not delay
    /// the others. All devices share the workers of [`Pool::Urgent`](crate::Pool::Urgent).
    #[default]
    PerDevice,
}

/// The environment variable that names an engine.
const VARIABLE: &str = "STREAMVM_ENGINE";

impl EngineKind {
    /// The engine that the environment variable `STREAMVM_ENGINE` names; `None` if it is unset or empty. For programs that want to
    /// refuse a wrong name, or to know the engine, before they build one; [`VmBuilder::build`](crate::VmBuilder::build) reads the
    /// variable by itself.
    ///
    /// # Errors
    /// [`Error::UnknownEngine`] if the variable has another value than the name of an engine.
    pub fn of_environment() -> Result<Option<EngineKind>, Error> {
        let kind = named(&env::var_os(VARIABLE).unwrap_or_default().to_string_lossy())?;
        if let Some(kind) = kind {
            log::debug!("{VARIABLE} asks for {kind:?}");
        }
        Ok(kind)
    }
}

fn named(name: &str) -> Result<Option<EngineKind>, Error> {
    match name {
        "" => Ok(None),
        "inline" => Ok(Some(EngineKind::Inline)),
        "shared" => Ok(Some(EngineKind::Shared)),
        "per-device" => Ok(Some(EngineKind::PerDevice)),
        other => Err(Error::UnknownEngine { variable: VARIABLE, found: other.to_owned() }),
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_an_engine_or_an_error_that_lists_all_of_them() {
        let refused = |name: &str| named(name).expect_err("no engine has this name").to_string();
        let text = refused("naive");
        for (name, kind) in
            [("inline", EngineKind::Inline), ("shared", EngineKind::Shared), ("per-device", EngineKind::PerDevice)]
        {
            assert_eq!(named(name), Ok(Some(kind)));
            assert!(text.contains(name), "{text}");
            assert!(refused(&name.to_uppercase()).contains(name));
        }
        assert!(text.contains("STREAMVM_ENGINE is \"naive\""), "{text}");
        assert_eq!(named(""), Ok(None));
    }
}
