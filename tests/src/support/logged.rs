//! The engine's log messages, for tests that look for them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use log::{Level, LevelFilter, Log, Metadata, Record};

/// What a test does when a message is logged.
type Hook = Arc<dyn Fn() + Send + Sync>;

/// Keeps all messages of the process; tests look for names of their own in them.
#[derive(Default)]
struct Kept {
    messages: Mutex<Vec<(Level, String)>>,
    /// What to call for each message that contains a name.
    hooks: Mutex<Vec<(&'static str, Hook)>>,
}

impl Kept {
    fn hooks_for(&self, text: &str) -> Vec<Hook> {
        let hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        hooks.iter().filter(|(name, _)| text.contains(name)).map(|(_, hook)| hook.clone()).collect()
    }
}

impl Log for Kept {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        let hooks = self.hooks_for(&text);
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push((record.level(), text));
        hooks.iter().for_each(|hook| hook());
    }

    fn flush(&self) {}
}

fn kept() -> &'static Kept {
    static KEPT: OnceLock<&'static Kept> = OnceLock::new();
    KEPT.get_or_init(|| {
        let kept: &'static Kept = Box::leak(Box::default());
        log::set_logger(kept).expect("the only logger of this process");
        log::set_max_level(LevelFilter::Warn);
        kept
    })
}

/// From now on the logger itself calls `hook`, in the thread that logs, for each message that contains `name`.
///
/// # Panics
/// If the process has another logger.
pub fn on_logged(name: &'static str, hook: impl Fn() + Send + Sync + 'static) {
    kept().hooks.lock().unwrap_or_else(PoisonError::into_inner).push((name, Arc::new(hook)));
}

/// The messages at `level` that contain `what`, of any engine of this process since the first call of a function of this module.
///
/// # Panics
/// If the process has another logger.
pub fn logged(level: Level, what: &str) -> Vec<String> {
    let kept = kept().messages.lock().unwrap_or_else(PoisonError::into_inner);
    let ours = kept.iter().filter(|(of, text)| *of == level && text.contains(what));
    ours.map(|(_, text)| text.clone()).collect()
}
