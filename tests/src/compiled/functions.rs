//! Functions in drawn programs: some compute, and some only check in which order they are called.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use streamvm::program::Steps;
use streamvm::{DeviceId, DeviceKind, Error, FnContext, FnError, Place, Tensor};

use crate::compiled::blocks::By;
use crate::{CPU, Random};

/// Calls a function over `x` and `y`, which are in one place: it writes or changes a new tensor, which is returned, or changes rows of `target`, if that
/// is there, too. Of a CUDA device, which calls no function, it takes copies on a CPU.
///
/// # Errors
/// Those of the engine or of the recording.
pub(super) fn call(
    draw: &mut Random,
    (x, y): (&Tensor, &Tensor),
    target: &Tensor,
    by: By<'_>,
) -> Result<Option<Tensor>, Error> {
    let (kind, from) = (draw.below(3), draw.below(super::ROWS));
    let Place::Device(device) = x.place() else { return Ok(None) };
    let device = host_of(device);
    let (x, y) = (&x.to(device)?, &y.to(device)?);
    // A function gets slices, so what it uses has no gaps.
    let y = if y.layout().is_contiguous() { y.clone() } else { y.neg()? };
    if kind == 2 && target.place() == x.place() {
        let rows = target.slice(0, from..target.shape().dims()[0])?;
        by.call_fn_on_workers("shifts", device, vec![rows.update()], |context| {
            context.writes.take::<i32>(0)?.iter_mut().for_each(|it| *it = it.wrapping_sub(3));
            Ok(())
        })?;
        return Ok(None);
    }
    let new = x.neg()?;
    match kind {
        0 => by.call_fn("triples", device, vec![y.read(), new.write()], |context| {
            let (read, written) = (context.reads.get::<i32>(0)?, context.writes.take::<i32>(0)?);
            written.iter_mut().zip(read).for_each(|(to, from)| *to = from.wrapping_mul(3));
            Ok(())
        })?,
        _ => by.call_fn_on_workers("adds", device, vec![y.read(), new.update()], |context| {
            let (read, written) = (context.reads.get::<i32>(0)?, context.writes.take::<i32>(0)?);
            written.iter_mut().zip(read).for_each(|(to, from)| *to = to.wrapping_add(*from));
            Ok(())
        })?,
    }
    Ok(Some(new))
}

/// Calls a function in a block of `device`, if that is a CPU and the kind asks for one: it changes all of `target`, which has no gaps.
///
/// # Errors
/// As [`call`].
pub(super) fn call_in_block(kind: usize, device: DeviceId, target: &Tensor, by: By<'_>) -> Result<(), Error> {
    match kind {
        0 if device.kind.is_cpu() => by.call_fn("changes", device, vec![target.update()], change),
        1 if device.kind.is_cpu() => by.call_fn_on_workers("changes", device, vec![target.update()], change),
        _ => Ok(()),
    }
}

/// Changes all numbers that are written, so that one call more or fewer shows in each of them.
pub(super) fn change(context: &mut FnContext<'_>) -> Result<(), FnError> {
    context.writes.take::<i32>(0)?.iter_mut().for_each(|it| *it = it.wrapping_mul(5).wrapping_add(1));
    Ok(())
}

/// The device itself, or a CPU for one that calls no function.
pub(super) fn host_of(device: DeviceId) -> DeviceId {
    if device.kind == DeviceKind::CUDA { CPU } else { device }
}

/// Functions that later ones can be ordered after.
#[derive(Default)]
pub(super) struct Orders {
    /// How many were recorded; eager calls have none, because a program alone has orders without tensors.
    drawn: usize,
    /// For each its step, and how often it was called.
    earlier: Vec<(Steps, Arc<AtomicU64>)>,
}

impl Orders {
    /// Records a function on one of the devices, or one that is ordered after such a function, and fails if that was called fewer times.
    ///
    /// # Errors
    /// Those of the recording.
    pub(super) fn draw(&mut self, draw: &mut Random, devices: &[DeviceId], by: By<'_>) -> Result<(), Error> {
        let (device, place) = (host_of(*draw.pick(devices)), draw.below(self.drawn + 1));
        let By::Recording(r) = by else {
            self.drawn += usize::from(place == self.drawn);
            return Ok(());
        };
        if let Some((steps, calls)) = self.earlier.get(place) {
            let (calls, own) = (calls.clone(), AtomicU64::new(0));
            r.after(&[steps], || {
                r.host_fn("later", device, move || {
                    let own = own.fetch_add(1, Ordering::SeqCst) + 1;
                    let earlier = calls.load(Ordering::SeqCst);
                    if earlier < own { Err("a later function is called before an earlier one".into()) } else { Ok(()) }
                })
            })?;
            return Ok(());
        }
        self.drawn += 1;
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        let ((), steps) = r.after(&[], || {
            r.host_fn("earlier", device, move || {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
        })?;
        self.earlier.push((steps, calls));
        Ok(())
    }
}
