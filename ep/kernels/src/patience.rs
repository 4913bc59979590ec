//! How a thread of a computation waits for another one of the same computation.

/// How a thread waits for another one: it polls, because most waits are short, and then sleeps for a tenth of the time that it has waited so far.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub struct Patience {
    polls: u32,
    since: Option<std::time::Instant>,
}

#[cfg(not(loom))]
impl Patience {
    /// Polls before a thread sleeps; after every 64th it yields, because the thread that it waits for may need its core.
    const POLLS: u32 = 1 << 12;

    /// Waits for a moment; longer each time.
    #[inline]
    pub fn wait(&mut self) {
        self.polls = self.polls.saturating_add(1);
        match self.polls {
            ..Patience::POLLS if !self.polls.is_multiple_of(64) => std::hint::spin_loop(),
            ..Patience::POLLS => std::thread::yield_now(),
            _ => self.sleep(),
        }
    }

    #[cold]
    fn sleep(&mut self) {
        use std::time::{Duration, Instant};
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        std::thread::sleep((waited / 10).clamp(Duration::from_micros(10), Duration::from_millis(1)));
    }
}

/// Lets the other threads of a model run.
#[cfg(loom)]
#[derive(Debug, Default)]
pub struct Patience;

#[cfg(loom)]
impl Patience {
    /// Lets them run.
    pub fn wait(&mut self) {
        loom::thread::yield_now();
    }
}
