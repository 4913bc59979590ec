//! Critical sections in drawn programs: all of them are over one resource, and functions check that no two are open at one time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use streamvm::{Critical, CriticalSection, DeviceId, Error, Section, Tensor};

use crate::compiled::blocks::By;

/// The resource of a drawn program, and its section that is open.
pub(super) struct Sections<'v> {
    port: Critical,
    /// Whether a section is open, in a run or eagerly.
    is_open: Arc<AtomicBool>,
    /// The open section, with the device that checks it.
    open: Option<(OpenSection<'v>, DeviceId)>,
}

enum OpenSection<'v> {
    Entered(CriticalSection<'v>),
    Recorded(Section),
}

impl<'v> Sections<'v> {
    pub(super) fn new() -> Sections<'v> {
        Sections { port: Critical::new("port"), is_open: Arc::default(), open: None }
    }

    /// Begins a section with the feed `x`, or ends the open one with the result `y`, which is no feed of the program. Functions on `device` check it.
    ///
    /// # Errors
    /// Those of the engine or of the recording.
    pub(super) fn draw(&mut self, device: DeviceId, x: &Tensor, y: &Tensor, by: By<'v>) -> Result<(), Error> {
        if self.open.is_some() {
            return self.end(&[y], by);
        }
        let begun = match by {
            By::Engine(vm) => OpenSection::Entered(vm.enter_section(&[&self.port], &[x])?),
            By::Recording(r) => OpenSection::Recorded(r.begin_section(&[&self.port], &[x])?),
        };
        self.open = Some((begun, device));
        let is_open = self.is_open.clone();
        by.call_fn("enters", device, Vec::new(), move |_| {
            if is_open.swap(true, Ordering::SeqCst) {
                Err("a section begins within another one".into())
            } else {
                Ok(())
            }
        })
    }

    /// Ends the open section, if one is.
    ///
    /// # Errors
    /// As for [`draw`](Sections::draw).
    pub(super) fn end(&mut self, results: &[&Tensor], by: By<'v>) -> Result<(), Error> {
        let Some((open, device)) = self.open.take() else { return Ok(()) };
        let is_open = self.is_open.clone();
        by.call_fn("leaves", device, Vec::new(), move |_| {
            is_open.store(false, Ordering::SeqCst);
            Ok(())
        })?;
        match (open, by) {
            (OpenSection::Entered(section), _) => section.end(results).map(drop),
            (OpenSection::Recorded(section), By::Recording(r)) => r.end_section(section, results),
            (OpenSection::Recorded(_), By::Engine(_)) => unreachable!("a recording ends what it has begun"),
        }
    }
}
