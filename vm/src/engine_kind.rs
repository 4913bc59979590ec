//! Which engine runs functions: one word, said in code or in the environment.

use std::env;

use streamvm_instructions::Error;

/// Which of three engines runs functions that are [pushed](crate::Vm::push), and lists for workers. A program is the same
/// on each, and so is what it computes: they differ in who runs a function, and when.
///
/// It is one word for settings that there are anyway, so that a program need not know them:
///
/// | | [`Mode`](crate::Mode) | workers |
/// |---|---|---|
/// | [`EngineKind::Inline`] | `Inline` | none |
/// | [`EngineKind::Shared`] | `Threaded` | one pool |
/// | [`EngineKind::PerDevice`] | `Threaded` | a pool for each device and [`Pool`](crate::Pool) |
///
/// Ordered streams, where everything else runs, have their own threads on `Shared` and `PerDevice` alike.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum EngineKind {
    /// Each function runs in the thread that pushes it, before the push returns: for debugging, and for knowing what a
    /// program gives one step after the other.
    Inline,
    /// One pool of workers runs all functions, of whatever device and [`Pool`](crate::Pool): as many as there are
    /// cores unless said otherwise, however many devices there are. It is set up as [`Pool::Normal`](crate::Pool::Normal) is, and what else was said of
    /// pools says nothing. Functions for [`Pool::Urgent`](crate::Pool::Urgent) go first there, as those of
    /// [`Priority::High`](crate::Priority::High) do.
    Shared,
    /// Each device has workers of its own, for each [`Pool`](crate::Pool) that is used: what keeps those of one busy keeps
    /// no other waiting.
    #[default]
    PerDevice,
}

/// The variable of the environment that names an engine.
const VARIABLE: &str = "STREAMVM_ENGINE";

impl EngineKind {
    /// The engine that the environment variable `STREAMVM_ENGINE` names; `None` if it names none. For programs that want to
    /// refuse a wrong name, or to know the engine, before they build one: [`VmBuilder::build`](crate::VmBuilder::build) asks by itself.
    ///
    /// # Errors
    /// [`Error::UnknownEngine`] if no engine is called so.
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
        let refused = |name: &str| named(name).expect_err("no engine is called so").to_string();
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
