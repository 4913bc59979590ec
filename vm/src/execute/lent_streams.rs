//! Streams of devices that run steps of a program between the commands of another device: see [`OtherWork::Device`](streamvm_ep::OtherWork::Device).
//!
//! A stream is lent to a run while steps of the run are on it. It is lent again only once all of its commands have completed, so a run never waits for another one on it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hashbrown::HashMap;
use streamvm_ep::{
    Commands, Device, DeviceId, Error, EventId, EventPool, LentStream, Operand, Prepared, ProgramStep, SegmentRun,
    SequenceError, Stream, StreamLender,
};

use crate::sync::{Mutex, unpoisoned};

/// How often a stream is asked whether its commands have completed, if asking fails and its device is not lost, and the time between.
const TRIES: (usize, Duration) = (100, Duration::from_millis(10));

/// The streams of all devices of an engine.
#[derive(Default)]
pub(crate) struct LentStreams {
    of_devices: Mutex<HashMap<DeviceId, Arc<Lender>>>,
}

/// Lends the streams of one device, and creates those that it needs.
struct Lender {
    device: Arc<dyn Device>,
    /// Streams without commands.
    idle: Arc<Mutex<Vec<Box<dyn Stream>>>>,
}

/// A stream that goes back to its lender when it is dropped.
struct Lent {
    stream: Option<Box<dyn Stream>>,
    device: Arc<dyn Device>,
    idle: Arc<Mutex<Vec<Box<dyn Stream>>>>,
    /// Whether commands were queued that are not known to have completed.
    is_busy: bool,
}

impl LentStreams {
    /// Those of a device.
    pub(crate) fn of(&self, device: &Arc<dyn Device>) -> Arc<dyn StreamLender> {
        let mut of_devices = unpoisoned(self.of_devices.lock());
        let lender = of_devices.entry(device.id()).or_insert_with(|| {
            let device = device.clone();
            Arc::new(Lender { device, idle: Arc::default() })
        });
        lender.clone()
    }
}

impl StreamLender for Lender {
    fn lend(&self) -> Result<Box<dyn LentStream>, Error> {
        let idle = unpoisoned(self.idle.lock()).pop();
        let stream = idle.map_or_else(|| self.device.create_stream(), Ok)?;
        let (device, idle) = (self.device.clone(), self.idle.clone());
        Ok(Box::new(Lent { stream: Some(stream), device, idle, is_busy: false }))
    }
}

impl Lent {
    /// Makes later commands of `stream` come after those of this one. An event that cannot be recorded or waited for becomes a wait of the host.
    fn join(&mut self, stream: &mut dyn Commands) -> Result<(), Error> {
        let Some(lent) = &mut self.stream else { return Ok(()) };
        let events = self.device.events();
        let after = Event(events, events.acquire());
        let joined = lent.record(after.1).and_then(|()| stream.wait(after.1));
        drop(after);
        if joined.is_ok() { Ok(()) } else { self.finish() }
    }
}

/// An event that goes back when it is dropped. Waits for it stay.
struct Event<'d>(&'d EventPool, EventId);

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // It was acquired from this pool, and is released once.
        let _ = self.0.release(self.1);
    }
}

impl LentStream for Lent {
    fn execute(
        &mut self,
        stream: &mut dyn Commands,
        prepared: &dyn Prepared,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        let failed = |error| SequenceError::Step { step: 0, error };
        // All commands of the stream have completed; this orders the thread after them.
        stream.synchronize().map_err(failed)?;
        let Some(lent) = &mut self.stream else { unreachable!("only the drop takes the stream") };
        match stream.label() {
            Some(label) => lent.begin(&label),
            None => lent.number(run.instruction.0, run.instruction.1),
        }
        self.is_busy = true;
        let step = lent.execute(prepared, operands, run)?;
        self.join(stream).map_err(failed)?;
        Ok(step)
    }

    fn finish(&mut self) -> Result<(), Error> {
        if let Some(lent) = &mut self.stream {
            lent.synchronize()?;
        }
        self.is_busy = false;
        Ok(())
    }
}

/// Waits for its commands, if the run has failed or panicked: they use memory of the run, which ends with it.
impl Drop for Lent {
    fn drop(&mut self) {
        let (tries, pause) = TRIES;
        for _ in 0..tries {
            if !self.is_busy {
                return unpoisoned(self.idle.lock()).extend(self.stream.take());
            }
            match self.finish() {
                Ok(()) => {}
                // It runs nothing more.
                Err(Error::DeviceLost { .. }) => return,
                Err(_) => thread::sleep(pause),
            }
        }
        log::error!("it cannot be told whether the commands of a program on {} have completed", self.device.id());
    }
}
