//! Streams of devices that run steps of a program between the commands of another device: see [`OtherWork::Device`](streamvm_ep::OtherWork::Device).
//!
//! A run that needs one borrows it until its steps are queued, so that several runs use the same streams one after the other.

use std::sync::Arc;

use hashbrown::HashMap;
use streamvm_ep::{
    Commands, Device, DeviceId, Error, EventId, EventPool, Instruction, LendsStreams, Operand, Prepared, ProgramStep,
    SegmentRun, SequenceError, Stream, StreamBeside,
};

use crate::sync::{Mutex, unpoisoned};

/// The streams of all devices of an engine.
#[derive(Default)]
pub(crate) struct StreamsBeside {
    of_devices: Mutex<HashMap<DeviceId, Arc<Lender>>>,
}

/// Lends the streams of one device, and creates those that it needs.
struct Lender {
    device: Arc<dyn Device>,
    idle: Mutex<Vec<Box<dyn Stream>>>,
}

/// A stream that goes back to its lender when it is dropped.
struct Lent {
    stream: Option<Box<dyn Stream>>,
    lender: Arc<Lender>,
}

impl StreamsBeside {
    /// Those of a device.
    pub(crate) fn of(&self, device: &Arc<dyn Device>) -> Arc<dyn LendsStreams> {
        let mut of_devices = unpoisoned(self.of_devices.lock());
        let lender = of_devices.entry(device.id()).or_insert_with(|| {
            let device = device.clone();
            Arc::new(Lender { device, idle: Mutex::default() })
        });
        Arc::new(Lends(lender.clone()))
    }
}

/// A lender, as what is prepared knows it.
struct Lends(Arc<Lender>);

impl LendsStreams for Lends {
    fn lend(&self) -> Result<Box<dyn StreamBeside>, Error> {
        let Lends(lender) = self;
        let idle = unpoisoned(lender.idle.lock()).pop();
        let stream = idle.map_or_else(|| lender.device.create_stream(), Ok)?;
        Ok(Box::new(Lent { stream: Some(stream), lender: lender.clone() }))
    }
}

impl StreamBeside for Lent {
    fn execute(
        &mut self,
        stream: &mut dyn Commands,
        prepared: &dyn Prepared,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        let Some(beside) = &mut self.stream else { unreachable!("only the drop takes the stream") };
        let events = self.lender.device.events();
        let (before, after) = (Event(events, events.acquire()), Event(events, events.acquire()));
        let failed = |error| SequenceError::Step { step: 0, error };
        match stream.instruction() {
            Some(Instruction::Labelled(label)) => beside.begin(&label),
            Some(Instruction::Numbered { stream, seq }) => beside.number(stream, seq),
            None => {}
        }
        stream.record(before.1).and_then(|()| beside.wait(before.1)).map_err(failed)?;
        let step = beside.execute(prepared, operands, run);
        // Also after an error: some commands may be queued.
        if let Err(error) = beside.record(after.1).and_then(|()| stream.wait(after.1)) {
            // No event tells when the commands have completed, which may use the memory. If this fails, too, the device is lost, and runs nothing more.
            let _ = beside.synchronize();
            return step.and(Err(failed(error)));
        }
        step
    }
}

/// An event that is released when it is dropped: waits for it that were queued stay.
struct Event<'d>(&'d EventPool, EventId);

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // It was acquired from this pool, and is released once.
        let _ = self.0.release(self.1);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        unpoisoned(self.lender.idle.lock()).extend(self.stream.take());
    }
}
