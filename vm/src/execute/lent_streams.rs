//! Streams of devices that run steps of a program between the commands of another device: see [`OtherWork::Device`](streamvm_ep::OtherWork::Device).
//!
//! A stream is lent to a run while steps of the run are on it. It is lent again only once all of its commands have completed, so a run never waits for another one on it.
//!
//! If it cannot be told whether the commands of a lent stream have completed, its device counts as lost, before the instruction that they belong to passes: then nothing more
//! runs there that could get the memory which they use. A device that the engine counts as lost lends no stream.

use std::sync::{Arc, OnceLock, Weak};

use hashbrown::HashMap;
use streamvm_ep::{
    Commands, Device, DeviceId, Error, EventId, EventPool, LentStream, Operand, Prepared, ProgramStep, SegmentRun,
    SequenceError, Stream, StreamLender,
};

use crate::sync::panics::guarded;
use crate::sync::{AtomicBool, Mutex, Ordering, unpoisoned};

/// The streams of all devices of an engine.
#[derive(Default)]
pub(crate) struct LentStreams {
    of_devices: Mutex<HashMap<DeviceId, Arc<Lender>>>,
    /// Set with the loss of the first device by a lender.
    any_lost: Arc<AtomicBool>,
}

/// Lends the streams of one device, and creates those that it needs.
struct Lender {
    device: Arc<dyn Device>,
    /// Streams without commands.
    idle: Mutex<Vec<Box<dyn Stream>>>,
    /// Why the device counts as lost.
    lost: OnceLock<Error>,
    any_lost: Arc<AtomicBool>,
}

/// A lender, as prepared programs know it, which may outlive their engine.
struct KnownLender(DeviceId, Weak<Lender>);

/// A stream that goes back to its lender when it is dropped.
struct Lent {
    stream: Option<Box<dyn Stream>>,
    lender: Arc<Lender>,
    /// Whether commands were queued that are not known to have completed.
    is_busy: bool,
}

impl LentStreams {
    /// Those of a device.
    pub(crate) fn of(&self, device: &Arc<dyn Device>) -> Arc<dyn StreamLender> {
        let mut of_devices = unpoisoned(self.of_devices.lock());
        let lender = of_devices.entry(device.id()).or_insert_with(|| {
            let (device, any_lost) = (device.clone(), self.any_lost.clone());
            Arc::new(Lender { device, idle: Mutex::default(), lost: OnceLock::new(), any_lost })
        });
        Arc::new(KnownLender(device.id(), Arc::downgrade(lender)))
    }

    /// Lends no further streams of a device, which is lost.
    pub(crate) fn lose(&self, device: DeviceId, error: &Error) {
        if let Some(lender) = unpoisoned(self.of_devices.lock()).get(&device) {
            // The first reason stays.
            let _ = lender.lost.set(error.clone());
        }
    }

    /// The devices that lenders have lost, with the reasons.
    pub(crate) fn lost(&self) -> Vec<(DeviceId, Error)> {
        if !self.any_lost.load(Ordering::Acquire) {
            return Vec::new();
        }
        let of_devices = unpoisoned(self.of_devices.lock());
        of_devices.iter().filter_map(|(device, lender)| Some((*device, lender.lost.get()?.clone()))).collect()
    }
}

impl StreamLender for KnownLender {
    fn lend(&self) -> Result<Box<dyn LentStream>, Error> {
        let KnownLender(device, lender) = self;
        let ended = || Error::DeviceLost { device: *device, reason: "its engine has ended".into() };
        let lender = lender.upgrade().ok_or_else(ended)?;
        if let Some(error) = lender.lost.get() {
            return Err(error.clone());
        }
        let idle = unpoisoned(lender.idle.lock()).pop();
        let stream = idle.map_or_else(|| lender.device.create_stream(), Ok)?;
        Ok(Box::new(Lent { stream: Some(stream), lender, is_busy: false }))
    }
}

impl Lent {
    /// Makes later commands of `stream` come after those of this one. An event that cannot be recorded or waited for becomes a wait of the host.
    fn join(&mut self, stream: &mut dyn Commands) -> Result<(), Error> {
        let Some(lent) = &mut self.stream else { return Ok(()) };
        let events = self.lender.device.events();
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
            guarded(|| lent.synchronize())?;
        }
        self.is_busy = false;
        Ok(())
    }
}

/// Waits for its commands, if the run has failed or panicked: they use memory of the run, which ends with it.
impl Drop for Lent {
    fn drop(&mut self) {
        if self.is_busy
            && let Err(error) = self.finish()
        {
            log::error!(
                "it cannot be told whether steps of a program on {} have run: {error}",
                self.lender.device.id()
            );
            let _ = self.lender.lost.set(error);
            self.lender.any_lost.store(true, Ordering::Release);
            return;
        }
        unpoisoned(self.lender.idle.lock()).extend(self.stream.take());
    }
}
