//! Runs a program on an engine.

use std::collections::BTreeMap;
use std::hint::spin_loop;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use streamvm::ep::Axes;
use streamvm::{
    Critical, DType, DeviceId, Element, Error, FnContext, FnError, InstructionsBuilder, Op, Params, Place, Section,
    StreamKey, StreamType, Tensor, Ticket, Use, Var, Vm, bf16, f16,
};

use super::launch::DrawnLaunch;
use super::seen::{Contents, Seen};
use super::step::{Action, Step, action};
use super::step_builder::StepBuilder;
use super::{Lists, Machine};

/// Edge lengths of the square matrices that programs work on.
const SIZES: [usize; 3] = [2, 8, 32];

/// Most tensors alive at a time; a new tensor replaces the oldest.
const SLOTS: usize = 16;

/// Number of variables of a program.
const VARS: usize = 3;

/// Number of lanes of each device.
const LANES: u32 = 3;

/// Runs each program on its own thread, all on one engine and with the same shared tensors, which they only read.
///
/// # Panics
/// If the engine refuses a step that no engine may refuse.
pub fn run_all(vm: &Vm, programs: &[Vec<Step>]) -> Vec<Seen> {
    let machine = Machine::CPUS;
    let shared = shared_tensors(vm, machine).expect("there is room for the shared tensors");
    std::thread::scope(|scope| {
        let shared = shared.as_slice();
        let threads: Vec<_> = programs
            .iter()
            .enumerate()
            .map(|(thread, program)| {
                scope.spawn(move || Run::new(vm, machine, shared, thread as u32 % LANES).run(program))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a program does not panic")).collect()
    })
}

/// One matrix of each size on each device, which programs only read.
pub(crate) fn shared_tensors(vm: &Vm, machine: Machine) -> Result<Vec<Tensor>, Error> {
    let pairs = SIZES.iter().flat_map(|n| machine.all().map(|device| (*n, device)));
    pairs.map(|(n, device)| matrix(vm, DType::F32, n, 0.5)?.to(device)).collect()
}

/// The dtype that a byte draws: `f32` half of the time.
fn dtype(byte: u8) -> DType {
    match byte % 4 {
        0 => DType::F16,
        1 => DType::BF16,
        _ => DType::F32,
    }
}

fn matrix(vm: &Vm, dtype: DType, n: usize, scale: f32) -> Result<Tensor, Error> {
    let elements = (0..n * n).map(|i| (i as f32 - 3.0) * scale);
    match dtype {
        DType::F16 => vm.from_slice(&elements.map(f16::from_f32).collect::<Vec<_>>(), &[n, n]),
        DType::BF16 => vm.from_slice(&elements.map(bf16::from_f32).collect::<Vec<_>>(), &[n, n]),
        _ => vm.from_slice(&elements.collect::<Vec<f32>>(), &[n, n]),
    }
}

/// The elements, converted to `f32`.
fn read(tensor: &Tensor) -> Result<Vec<f32>, Error> {
    Ok(match tensor.dtype() {
        DType::F16 => tensor.to_vec::<f16>()?.into_iter().map(f32::from).collect(),
        DType::BF16 => tensor.to_vec::<bf16>()?.into_iter().map(f32::from).collect(),
        _ => tensor.to_vec()?,
    })
}

/// The step that last wrote each variable, and for each step that looked at a variable, the step that had last written it. Functions write
/// it, so it is locked.
type Log = Arc<Mutex<(Vec<usize>, BTreeMap<(usize, usize), usize>)>>;

/// A running program.
pub(crate) struct Run<'vm> {
    vm: &'vm Vm,
    machine: Machine,
    shared: &'vm [Tensor],
    builder: StepBuilder,
    slots: Vec<Tensor>,
    vars: Vec<Var>,
    /// A resource of critical sections, and the section of the current list that is open.
    port: Critical,
    section: Option<Section>,
    log: Log,
    tickets: Vec<Ticket<'vm>>,
    tensors: Vec<Contents>,
    /// Number of the current step, for names and values.
    step: usize,
    /// The submitted lists as text, if the caller asked for them.
    pub(crate) lists: Option<Lists>,
}

impl<'vm> Run<'vm> {
    pub(crate) fn new(vm: &'vm Vm, machine: Machine, shared: &'vm [Tensor], lane: u32) -> Run<'vm> {
        let builder = StepBuilder::new(lane);
        let vars = (0..VARS).map(|_| Var::new()).collect();
        let log = Arc::new(Mutex::new((vec![usize::MAX; VARS], BTreeMap::new())));
        let (slots, tickets, tensors) = Default::default();
        let (port, section) = (Critical::new("port"), None);
        Run { vm, machine, shared, builder, slots, vars, port, section, log, tickets, tensors, step: 0, lists: None }
    }

    fn run(mut self, program: &[Step]) -> Seen {
        for step in program {
            self.next(*step);
        }
        self.end()
    }

    /// Takes one step.
    ///
    /// # Panics
    /// If the engine refuses a step that no engine may refuse.
    pub(crate) fn next(&mut self, step: Step) {
        self.step += 1;
        // The last byte selects the lane, whether workers run the step, and whether the list so far is submitted.
        self.builder.lane = u32::from(step[4]) % LANES;
        self.builder.on_workers = step[4] & 0b1100 == 0b1100;
        match self.take(step) {
            // The builder refuses some drawn operands (overlaps), the same on every engine.
            Ok(()) | Err(Error::Build { .. }) => {}
            Err(error) => panic!("step {}, {:?} ({step:?}): {error}", self.step, action(step[0])),
        }
        if step[4] & 0b1100_0000 == 0 {
            self.flush();
        }
    }

    /// Reads all tensors that are alive, and returns everything observable of the run.
    pub(crate) fn end(&mut self) -> Seen {
        self.flush();
        for tensor in std::mem::take(&mut self.slots) {
            self.look(&tensor);
        }
        let name = |error: Error| match error {
            Error::Failed(failure) => failure.what.clone(),
            other => other.to_string(),
        };
        let tickets = self.tickets.iter().map(|ticket| ticket.wait().map_err(name)).collect();
        let variables = self.log.lock().unwrap_or_else(PoisonError::into_inner).1.clone();
        Seen { tensors: std::mem::take(&mut self.tensors), tickets, variables }
    }

    /// Submits the list so far.
    ///
    /// # Panics
    /// If the engine refuses it.
    pub(crate) fn flush(&mut self) {
        self.end_section(0);
        let list = self.builder.take_list();
        let text = if self.lists.is_some() || cfg!(debug_assertions) { list.to_string() } else { String::new() };
        if let Some(lists) = &self.lists
            && !list.is_empty()
        {
            lists.lock().unwrap_or_else(PoisonError::into_inner).push(text.clone());
        }
        match self.vm.submit(list) {
            Ok(ticket) => self.tickets.push(ticket),
            Err(error) => panic!("an engine refused a list: {error}\n{text}"),
        }
    }

    /// Begins a critical section of the list, or ends the one that is open. Every engine of a program has the same lists, so the sections of
    /// several programs on one engine only add order.
    fn section(&mut self, a: u8) -> Result<(), Error> {
        if self.section.is_some() {
            self.end_section(a);
            return Ok(());
        }
        let feed = self.any(a);
        self.section = Some(self.builder.with(|b| b.begin_section(&[&self.port], feed.as_ref().as_slice()))?);
        Ok(())
    }

    fn end_section(&mut self, a: u8) {
        if let Some(section) = self.section.take() {
            let result = self.slots.get(usize::from(a) % self.slots.len().max(1));
            self.builder.with(|b| b.end_section(section, result.as_slice()));
        }
    }

    /// The op, or a similar one whose results are equal on every device.
    fn exactly(&self, op: Op) -> Op {
        match op {
            Op::Tanh if self.machine.exact => Op::Abs,
            Op::MatMul if self.machine.exact => Op::Sub,
            Op::SoftmaxBackward if self.machine.exact => Op::Mul,
            op => op,
        }
    }

    fn look(&mut self, tensor: &Tensor) {
        self.tensors.push(match read(tensor) {
            Ok(elements) => Ok(elements.into_iter().map(f32::to_bits).collect()),
            Err(Error::Failed(failure)) => Err(failure.what.clone()),
            Err(other) => panic!("reading back: {other}"),
        });
    }

    fn take(&mut self, [kind, a, b, c, flags]: Step) -> Result<(), Error> {
        let eager = flags & 0b0010_0000 != 0 && flags & 0b0001_0000 != 0;
        let value = self.step as f32 * 0.25 - f32::from(c);
        let (place, device) = (self.machine.place(b), self.machine.compute(b));
        let n = SIZES[usize::from(c) % SIZES.len()];
        match action(kind) {
            Action::HostTensor => {
                let tensor = matrix(self.vm, dtype(a), n, value)?;
                self.keep(tensor);
            }
            Action::Fill => {
                let tensor = self.builder.with(|b| b.full(place, dtype(a), &[n, n], value))?;
                self.keep(tensor);
            }
            Action::Allocate => {
                let tensor = self.builder.with(|b| b.allocate(place, dtype(a / 3), &[n, n]))?;
                self.builder.with(|b| b.on_lane(u32::from(a % 3)).fill(&tensor, value))?;
                self.keep(tensor);
            }
            Action::Copy => {
                let Some(source) = self.any(a) else { return Ok(()) };
                let copy = self.eager_or(eager, |_| source.to(place), |b| b.copy(&source, place))?;
                self.keep(copy);
            }
            Action::Unary => {
                let Some(x) = self.view(a, Some(device), c) else { return Ok(()) };
                // One in four is a cast to a dtype that the step draws, and one in four cuts a part and pads it back to the full size.
                let (x, op, params) = match c >> 6 {
                    0 => (x, Op::Cast, Params::to(dtype(c))),
                    1 => {
                        let (axis, rows) = part(&x, b, c);
                        let (before, after) = (rows.start as u32, (x.shape().dims()[axis] - rows.end) as u32);
                        let margins = Params::pad(Axes::new(&[axis]).expect("an axis"), before, after, value);
                        (cut(&x, b, c), Op::Pad, margins)
                    }
                    _ => {
                        (x, self.exactly([Op::Neg, Op::Relu, Op::Tanh, Op::Abs][usize::from(c) % 4]), Params::default())
                    }
                };
                let run = |_: &mut Run<'_>| x.op(op, &[], params);
                let y = self.eager_or(eager, run, |b| b.op(op, &[&x], params))?;
                self.keep(y);
            }
            Action::Binary | Action::MatMul => {
                // One in four is a gradient, along rows or columns.
                let along = Params::over(Axes::new(&[usize::from(c) % 2]).expect("an axis"));
                let (op, params) = match action(kind) {
                    Action::MatMul => (self.exactly(Op::MatMul), Params::default()),
                    _ if c >> 6 == 1 => (self.exactly(Op::SoftmaxBackward), along),
                    _ => ([Op::Add, Op::Sub, Op::Mul, Op::Max][usize::from(c) % 4], Params::default()),
                };
                let Some(x) = self.view(a, Some(device), c) else { return Ok(()) };
                let Some(y) = self.like(&x, b.wrapping_add(c), c >> 4) else { return Ok(()) };
                let run = |_: &mut Run<'_>| x.op(op, &[&y], params);
                let z = self.eager_or(eager, run, |b| b.op(op, &[&x, &y], params))?;
                self.keep(z);
            }
            Action::InPlace => {
                let Some(x) = self.owned(a, Some(device)) else { return Ok(()) };
                let Some(y) = self.like(&x, c, 0) else { return Ok(()) };
                let op = if c.is_multiple_of(2) { Op::Add } else { Op::Max };
                self.builder.with(|b| b.op_into(op, &[&x, &y], Params::default(), &x))?;
            }
            Action::WritePart => {
                let Some(x) = self.owned(a, None) else { return Ok(()) };
                let part = cut(&x, b, c);
                self.builder.with(|b| b.fill(&part, value))?;
            }
            Action::CopyPart => {
                let (Some(x), Some(y)) = (self.owned(a, None), self.owned(b, None)) else { return Ok(()) };
                self.builder.with(|b| b.copy_into(&cut(&x, c, c >> 3), &cut(&y, c, c >> 3)))?;
            }
            Action::CopyInto => {
                let (Some(x), Some(y)) = (self.any(a), self.owned(b, None)) else { return Ok(()) };
                let x = if c.is_multiple_of(2) { x } else { flipped(&x) };
                self.builder.with(|b| b.copy_into(&x, &y))?;
            }
            Action::Release => {
                if let Some(tensor) = self.remove(a) {
                    self.builder.with(|b| b.release(&tensor));
                }
            }
            Action::Drop => drop(self.remove(a)),
            Action::Function => self.function(a, b, c)?,
            Action::Variable => self.variable(b, c)?,
            Action::Push => self.push([kind, a, b, c, flags])?,
            Action::Fail => self.fail(a, c)?,
            Action::Barrier => match c % 6 {
                4 | 5 => return self.section(a),
                0 => self.builder.with(|b| b.barrier()),
                1 => self.builder.with(|b| b.global_sync()),
                2 => self.builder.with(|b| b.barrier_with("between", || Ok(()))),
                _ => self
                    .builder
                    .with(|b| b.barrier_with(format!("barrier {}", self.step), || Err("a barrier's failure".into()))),
            },
            Action::Events => {
                let stream = |byte: u8| {
                    let of = [StreamType::Compute, StreamType::HostToDevice, StreamType::DeviceToHost];
                    let (device, of) = (self.machine.device(u32::from(byte >> 6)), of[usize::from(byte >> 4) % 3]);
                    StreamKey::new(device, of, u32::from(byte) % LANES)
                };
                let (source, target) = (stream(a), stream(b));
                let event = self.builder.with(|b| b.record(source));
                self.builder.with(|b| b.wait(target, source, &event));
            }
            Action::Touch => {
                let Some(x) = self.any(a) else { return Ok(()) };
                self.builder.with(|b| b.touch(device, &[&x]));
            }
            Action::WaitAll => {
                self.flush();
                // Failures are reported by the tickets.
                if let Err(error @ (Error::Shutdown { .. } | Error::WouldDeadlock { .. })) = self.vm.wait_all() {
                    return Err(error);
                }
            }
            Action::EmptyCache => {
                self.flush();
                self.vm.empty_cache();
            }
            Action::Look => {
                let Some(x) = self.any(a) else { return Ok(()) };
                self.flush();
                self.look(&x);
            }
        }
        Ok(())
    }

    /// Adds an instruction to the list, or submits the list so far and then makes an eager call.
    fn eager_or<T>(
        &mut self,
        eager: bool,
        call: impl FnOnce(&mut Run<'_>) -> Result<T, Error>,
        build: impl FnOnce(&mut InstructionsBuilder) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if !eager {
            return self.builder.with(build);
        }
        self.flush();
        let _lane = streamvm::Lane(self.builder.lane).enter();
        call(self)
    }

    /// A function that reads up to three tensors and writes or updates one, all contiguous and on one device.
    fn function(&mut self, a: u8, b: u8, c: u8) -> Result<(), Error> {
        let Some(target) = self.reachable(a) else { return Ok(()) };
        let eager = c & 0b10_0000 != 0;
        if eager {
            self.flush();
        }
        let device = target.place().device().unwrap_or(self.machine.calls(self.machine.compute(b)));
        let read: Vec<Tensor> = (0..c % 4)
            .filter_map(|index| {
                self.like(&target, b.wrapping_add(index), 0).filter(|read| !read.shares_storage(&target))
            })
            .collect();
        let mut uses: Vec<Use<'_>> = read.iter().map(Tensor::read).collect();
        let (reads, update) = (uses.len(), c & 0b100 != 0);
        uses.push(if update { target.update() } else { target.write() });
        let var = &self.vars[usize::from(b) % VARS];
        uses.extend((c & 0b1000 != 0).then(|| var.read()));
        let (base, spins, held) = (self.step as f32, u32::from(c) * 8, (c & 0b1_0000 != 0).then(|| target.clone()));
        let name = format!("function {}", self.step);
        let function = move |context: &mut FnContext<'_>| {
            let _held = held;
            (0..spins).for_each(|_| spin_loop());
            match context.writes.dtype(0)? {
                DType::F16 => combine(context, reads, update, base, f16::from_f32),
                DType::BF16 => combine(context, reads, update, base, bf16::from_f32),
                _ => combine(context, reads, update, base, |sum: f32| sum),
            }
        };
        if !eager {
            return self.builder.with(|b| b.call_fn(name, device, uses, function));
        }
        let _lane = streamvm::Lane(self.builder.lane).enter();
        self.vm.call_fn(name, device, uses, function).map(drop)
    }

    /// A function over one variable: it records the last write of the variable, or itself as the last write.
    fn variable(&mut self, b: u8, c: u8) -> Result<(), Error> {
        let index = usize::from(b) % VARS;
        let (step, note) = (self.step, self.note(index, c.is_multiple_of(3)));
        let var = &self.vars[index];
        let declared = match c % 6 {
            0 => var.write(),
            3 => var.update(),
            _ => var.read(),
        };
        let device = self.machine.calls(self.machine.device(u32::from(c >> 6)));
        self.builder.with(|b| {
            b.call_fn(format!("variable {step}"), device, [declared], move |_| {
                note();
                Ok(())
            })
        })?;
        Ok(())
    }

    /// The body of a function over a variable.
    fn note(&self, index: usize, writes: bool) -> impl FnOnce() + Send + 'static {
        let (log, step) = (self.log.clone(), self.step);
        move || {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            let last = log.0[index];
            log.1.insert((step, index), last);
            if writes {
                log.0[index] = step;
            }
        }
    }

    /// Pushes a function to workers, over one or two variables, which may be the same, and over tensors, which only order it: it may read
    /// one and write a part of another, on any device. One in eight fails.
    fn push(&mut self, bytes: Step) -> Result<(), Error> {
        let [_, a, b, c, _] = bytes;
        self.flush();
        let (first, second) = (usize::from(b) % VARS, usize::from(b >> 2) % VARS);
        let writes = c % 4 < 2;
        let read = self.any(a >> 2).filter(|_| a & 0b1 != 0);
        let written = self.owned(a >> 2, None).filter(|_| a & 0b10 != 0).map(|x| cut(&x, b, c));
        let mut uses = vec![match c % 4 {
            0 => self.vars[first].write(),
            1 => self.vars[first].update(),
            _ => self.vars[first].read(),
        }];
        uses.extend((b & 0b10_0000 != 0).then(|| self.vars[second].read()));
        uses.extend(read.as_ref().map(Tensor::read));
        uses.extend(written.as_ref().map(Tensor::write));
        let (name, note, fails) = (format!("push {}", self.step), self.note(first, writes), c >> 5 == 0b111);
        let launch = DrawnLaunch::of(bytes, self.machine);
        if let Some(lists) = &self.lists {
            lists.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{name} {launch}\n"));
        }
        let ticket = launch.pusher(self.vm).push(name, uses, move || {
            note();
            if fails { Err("a pushed function's failure".into()) } else { Ok(()) }
        })?;
        self.tickets.push(ticket);
        Ok(())
    }

    /// A function that fails, by an error or a panic, with or without an output to poison.
    fn fail(&mut self, a: u8, c: u8) -> Result<(), Error> {
        let name = format!("failure {}", self.step);
        let Some(target) = self.reachable(a).filter(|_| !c.is_multiple_of(4)) else {
            self.builder.with(|b| {
                b.host_fn(name, self.machine.calls(self.machine.compute(c)), || Err("a host function's failure".into()))
            });
            return Ok(());
        };
        let device = target.place().device().unwrap_or(self.machine.calls(self.machine.compute(c)));
        let part = (c % 4 == 1).then(|| cut(&target, c, c));
        let declared = part.as_ref().map_or(target.write(), Tensor::update);
        self.builder.with(|b| b.call_fn(name, device, [declared], |_| Err("a function's failure".into())))?;
        Ok(())
    }

    fn keep(&mut self, tensor: Tensor) {
        if self.slots.len() == SLOTS {
            self.slots.remove(0);
        }
        self.slots.push(tensor);
    }

    fn remove(&mut self, byte: u8) -> Option<Tensor> {
        (!self.slots.is_empty()).then(|| self.slots.remove(usize::from(byte) % self.slots.len()))
    }

    fn any(&self, byte: u8) -> Option<Tensor> {
        let all = self.slots.len() + self.shared.len();
        let index = usize::from(byte) % all;
        self.slots.get(index).or_else(|| self.shared.get(index - self.slots.len())).cloned()
    }

    /// One of this program's own tensors, to write.
    fn owned(&self, byte: u8, device: Option<DeviceId>) -> Option<Tensor> {
        let fits: Vec<&Tensor> =
            self.slots.iter().filter(|t| device.is_none_or(|device| t.place() == Place::Device(device))).collect();
        fits.get(usize::from(byte) % fits.len().max(1)).map(|tensor| (*tensor).clone())
    }

    /// One of this program's own tensors that a function can write.
    fn reachable(&self, byte: u8) -> Option<Tensor> {
        let fits: Vec<&Tensor> = self.slots.iter().filter(|t| self.machine.is_host_reachable(t.place())).collect();
        fits.get(usize::from(byte) % fits.len().max(1)).map(|tensor| (*tensor).clone())
    }

    /// A tensor to read on `device`, either whole or as a view of all its elements.
    fn view(&self, byte: u8, device: Option<DeviceId>, how: u8) -> Option<Tensor> {
        let on = |t: &&Tensor| device.is_none_or(|device| t.place() == Place::Device(device));
        let fits: Vec<&Tensor> = self.slots.iter().chain(self.shared).filter(on).collect();
        let tensor = fits.get(usize::from(byte) % fits.len().max(1))?;
        Some(if how & 0b1000 == 0 { (*tensor).clone() } else { flipped(tensor) })
    }

    /// A second tensor with the dtype, shape and place of `x`.
    fn like(&self, x: &Tensor, byte: u8, how: u8) -> Option<Tensor> {
        let like = |t: &&Tensor| t.place() == x.place() && t.shape() == x.shape() && t.dtype() == x.dtype();
        let fits: Vec<&Tensor> = self.slots.iter().chain(self.shared).filter(like).collect();
        let tensor = fits.get(usize::from(byte) % fits.len().max(1))?;
        Some(if how.is_multiple_of(2) { (*tensor).clone() } else { flipped(tensor) })
    }
}

/// The computation of a function: half of the old element, or `base`, plus all elements that it reads.
fn combine<T: Element>(
    context: &mut FnContext<'_>,
    reads: usize,
    update: bool,
    base: f32,
    rounded: fn(f32) -> T,
) -> Result<(), FnError>
where
    f32: From<T>,
{
    let target = context.writes.take::<T>(0)?;
    for (i, element) in target.iter_mut().enumerate() {
        let mut sum = if update { f32::from(*element) * 0.5 } else { base };
        for read in 0..reads {
            sum += f32::from(context.reads.get::<T>(read)?[i]);
        }
        *element = rounded(sum);
    }
    Ok(())
}

fn flipped(tensor: &Tensor) -> Tensor {
    tensor.permute(&[1, 0]).expect("a matrix has two axes")
}

/// A view of some rows or columns of a matrix.
fn cut(tensor: &Tensor, start: u8, how: u8) -> Tensor {
    let (axis, range) = part(tensor, start, how);
    tensor.slice(axis, range).expect("within the matrix")
}

/// The axis along which a matrix is cut, and the range that stays.
fn part(tensor: &Tensor, start: u8, how: u8) -> (usize, Range<usize>) {
    let n = tensor.shape().dims()[0];
    let first = usize::from(start) % n;
    let last = (first + 1 + usize::from(how >> 2) % n).min(n);
    (usize::from(how % 2), first..last)
}
