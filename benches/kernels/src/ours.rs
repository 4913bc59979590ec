//! streamvm's kernels as an entrant: launched on a CPU stream, without the engine.

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use streamvm::ep::{CpuConfig, CpuDevice, builtin_kernels};
use streamvm_ep::{
    Access, DType, Device, DeviceKind, Error, KernelCall, Layout, MemoryKind, Op, Operand, Region, Shape, f16,
};

use crate::cases::{self, Call, Case};
use crate::composed;
use crate::entrant::compared;
use crate::fused;
use crate::layer;
use crate::model::{self, Model};

/// How many batches a budget is divided into; the answer is their median.
const BATCHES: u32 = 9;

/// Why a case could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Kernel(#[from] Error),
    #[error(transparent)]
    Engine(#[from] streamvm::Error),
    #[error(transparent)]
    Model(#[from] streamvm_minilm::error::Error),
    #[error("reading a case or answering it: {0}")]
    Pipe(#[from] io::Error),
}

/// Answers the cases on stdin, as [`entrant`](crate::entrant) describes. The model is in `folder`.
pub(crate) fn answer(threads: usize, folder: &Path) -> Result<(), Failure> {
    let device = CpuDevice::new(0, CpuConfig { threads: Some(threads), ..CpuConfig::default() });
    let mut model: Option<Model> = None;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let asked =
            line.split_once(' ').and_then(|(name, budget)| Some((name, Duration::from_millis(budget.parse().ok()?))));
        let number = match asked {
            Some((name, budget)) => {
                if let Some(case) = cases::find(name) {
                    Some(measure(&device, &case, budget)?)
                } else if let Some(call) = composed::Call::of(name) {
                    Some(if budget.is_zero() { call.element(threads)? } else { call.measure(threads, budget)? })
                } else if let Some(steps) = fused::Steps::of(name) {
                    Some(if budget.is_zero() { steps.element(threads)? } else { steps.measure(threads, budget)? })
                } else if let Some(batch) = layer::batch_of(name) {
                    Some(if budget.is_zero() {
                        layer::element(threads, batch)?
                    } else {
                        layer::measure(threads, batch, budget)?
                    })
                } else if let Some(batch) = model::batch_of(name) {
                    if model.is_none() {
                        model = Model::read(folder, threads)?;
                    }
                    match &model {
                        Some(model) if budget.is_zero() => Some(model.element(batch)?),
                        Some(model) => Some(model.measure(batch, budget)?),
                        None => None,
                    }
                } else {
                    None
                }
            }
            None => None,
        };
        let answer = number.map_or("-".to_owned(), |number| number.to_string());
        let mut out = io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// Element `i` of an operand of ordinary numbers, from `least` to 8 more, as `numbers` in drivers/network.py and drivers/candle.
pub(crate) fn number(i: usize, least: f32) -> f32 {
    (i * 7919 % 8192) as f32 / 1024.0 + least
}

/// Operands in memory of the device.
struct Operands<'a> {
    device: &'a CpuDevice,
    regions: Vec<Region>,
}

impl Operands<'_> {
    /// An operand of this dtype and shape: numbers from `least` to 8 more to read, or zeros to write.
    fn make(&mut self, dtype: DType, shape: &[usize], access: Access, least: f32) -> Result<Operand<'static>, Error> {
        let layout = Layout::contiguous(Shape::new(shape)?);
        let count = layout.elements();
        let region = self.device.allocate(MemoryKind::Device, count * dtype.size())?;
        let base = region.base();
        self.regions.push(region);
        if access == Access::Read {
            for i in 0..count {
                match dtype {
                    // SAFETY: the region holds `count` elements of this size, aligned, and nothing else uses it.
                    DType::F64 => unsafe { base.cast::<f64>().wrapping_add(i).write(f64::from(number(i, least))) },
                    // SAFETY: as above. 0x3c00 is 1.0, and all smaller bits are finite numbers.
                    DType::F16 => unsafe { base.cast::<u16>().wrapping_add(i).write((i * 31 % 0x3c00) as u16) },
                    // SAFETY: as above. Classes of a cross entropy, of which every case has at least 1000.
                    DType::I64 => unsafe { base.cast::<i64>().wrapping_add(i).write((i * 31 % 1000) as i64) },
                    // SAFETY: as above; no case has inputs of another dtype.
                    _ => unsafe { base.cast::<f32>().wrapping_add(i).write(number(i, least)) },
                }
            }
        }
        // SAFETY: the region holds the layout's elements, initialised, and lives as long as the operands; nothing else uses it.
        Ok(unsafe { Operand::new(base, dtype, layout, access) })
    }
}

impl Drop for Operands<'_> {
    fn drop(&mut self) {
        for region in self.regions.drain(..) {
            // SAFETY: the region came from this device, and its operands are gone when the call has been measured.
            unsafe { self.device.free(region) };
        }
    }
}

/// The [compared] element of a tensor of `f32`.
pub(crate) fn element(tensor: &streamvm::Tensor) -> Result<f64, streamvm::Error> {
    let elements = tensor.to_vec::<f32>()?;
    Ok(f64::from(elements[compared(elements.len())]))
}

/// The [compared] element of an output.
fn element_of(out: &Operand) -> f64 {
    let place = compared(out.layout().elements());
    let base = out.ptr();
    match out.dtype() {
        // SAFETY: the output is contiguous, has so many elements of this type, and no kernel runs.
        DType::F64 => unsafe { base.cast::<f64>().wrapping_add(place).read() },
        // SAFETY: as above.
        DType::I64 => unsafe { base.cast::<i64>().wrapping_add(place).read() as f64 },
        // SAFETY: as above.
        DType::F16 => f64::from(unsafe { base.cast::<f16>().wrapping_add(place).read() }),
        // SAFETY: as above; no case has an output of another dtype.
        _ => f64::from(unsafe { base.cast::<f32>().wrapping_add(place).read() }),
    }
}

/// The median time of a call in nanoseconds; without a budget the compared element of its output.
fn measure(device: &CpuDevice, case: &Case, budget: Duration) -> Result<f64, Error> {
    let mut stream = device.create_stream()?;
    let mut memory = Operands { device, regions: Vec::new() };
    let mut operands = Vec::new();
    let least = if matches!(case.call, Call::Op(Op::Log, _)) { 0.125 } else { -4.0 };
    for (dtype, shape) in &case.inputs {
        operands.push(memory.make(*dtype, shape, Access::Read, least)?);
    }
    let mut out = memory.make(case.out.0, &case.out.1, Access::Write, 0.0)?;
    let dtype = case.inputs[0].0;
    match case.call {
        Call::Op(op, params) => {
            operands.push(out);
            let kernel = builtin_kernels().get(op, DeviceKind::CPU, dtype)?;
            let inputs = case.inputs.len();
            let mut call = KernelCall::new(kernel, &mut operands, inputs, &params);
            if budget.is_zero() {
                stream.launch(&mut call)?;
                return Ok(element_of(&operands[inputs]));
            }
            time(budget, || stream.launch(&mut call))
        }
        Call::Permuted(order) => {
            let source = &operands[0];
            let layout = source.layout().permute(order)?;
            // SAFETY: a view of the same elements, which are only read.
            let view = unsafe { Operand::new(source.ptr(), dtype, layout, Access::Read) };
            if budget.is_zero() {
                stream.copy(&view, &mut out)?;
                return Ok(element_of(&out));
            }
            time(budget, || stream.copy(&view, &mut out))
        }
    }
}

/// The median over batches of `call`, in nanoseconds a call.
pub(crate) fn time<E>(budget: Duration, mut call: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let start = Instant::now();
    call()?;
    call()?;
    let once = (start.elapsed() / 2).max(Duration::from_nanos(20));
    let batch = (budget.as_nanos() / u128::from(BATCHES) / once.as_nanos()).clamp(1, 1 << 20) as u32;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < BATCHES as usize && (times.len() < 3 || begin.elapsed() < budget * 2) {
        let start = Instant::now();
        for _ in 0..batch {
            call()?;
        }
        times.push(start.elapsed().as_nanos() as f64 / f64::from(batch));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
