//! The engine's log messages, for tests that look for them.

use std::sync::{Mutex, OnceLock, PoisonError};

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Keeps all messages of the process; tests look for names of their own in them.
#[derive(Default)]
struct Kept(Mutex<Vec<(Level, String)>>);

impl Log for Kept {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}

/// The messages at `level` that contain `what`, of any engine of this process since the first call of this function.
///
/// # Panics
/// If the process has another logger.
pub fn logged(level: Level, what: &str) -> Vec<String> {
    static KEPT: OnceLock<&'static Kept> = OnceLock::new();
    let kept = KEPT.get_or_init(|| {
        let kept: &'static Kept = Box::leak(Box::default());
        log::set_logger(kept).expect("the only logger of this process");
        log::set_max_level(LevelFilter::Warn);
        kept
    });
    let kept = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
    let ours = kept.iter().filter(|(of, text)| *of == level && text.contains(what));
    ours.map(|(_, text)| text.clone()).collect()
}
