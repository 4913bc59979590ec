//! Fused kernels, written for drawn groups of steps, beside the kernels that run the steps one by one. Both have to give the same bits.

use std::cell::RefCell;

use streamvm_cuda::{KernelName, fused_ptx, plan, plan_copy, plan_fill, plan_fused};
use streamvm_ep::*;
use streamvm_ptx::Coverage;

use crate::reference::Value;
use crate::tensors::{Pool, Rng, Tensor, VIEWS, View};
use crate::{Runner, interpreter};

/// Drawn steps over buffers, one for each value.
struct Group {
    dims: Vec<usize>,
    /// Whether all views are contiguous or one element for all, as most are: then a kernel takes four elements at a time.
    plain: bool,
    buffers: Vec<Tensor>,
    steps: Vec<SequenceStep>,
    unstored: Vec<usize>,
    /// For each buffer whether the kernel leaves in it what the steps leave.
    compared: Vec<bool>,
}

/// A value that a step may read.
#[derive(Clone)]
struct Known {
    buffer: usize,
    dtype: DType,
    layout: Layout,
    /// Whether an output may be written over it.
    whole: bool,
}

fn operand(value: &Known, access: Access) -> SequenceOperand {
    let memory = SequenceMemory::Buffer { index: value.buffer, offset: 0 };
    SequenceOperand { memory, dtype: value.dtype, layout: value.layout, access }
}

fn draw_dims(rng: &mut Rng) -> Vec<usize> {
    let rank = rng.below(4);
    (0..rank).map(|_| [1, 2, 3, 5, 8, 40][rng.below(6)]).collect()
}

/// The steps of a group.
enum Steps<'n> {
    /// At most so many, drawn.
    Drawn(usize),
    /// The work of these kernels.
    Named(&'n [KernelName]),
}

/// Every kernel whose work can be a step of a group.
fn fusable() -> Vec<KernelName> {
    let is_fusable = |name: &KernelName| match *name {
        KernelName::Op(op, dtype) => op.is_elementwise() && !op.refuses_elements(dtype),
        // With the number 1 on the right, so that no element is refused.
        KernelName::WithNumbers(op, dtype, places) => {
            op.refuses_elements(dtype) && places.contains(1) && dtype != DType::Bool
        }
        KernelName::Cast(..) => true,
        _ => false,
    };
    KernelName::all().chain(KernelName::with_numbers()).filter(is_fusable).collect()
}

/// Groups of which every fusable kernel is a step of one, and `count` drawn ones of at most `most` steps.
fn all_groups(rng: &mut Rng, count: usize, most: usize) -> Vec<Group> {
    // Eight steps of four operands each are as many views as a group may have.
    let named: Vec<Group> = fusable().chunks(8).map(|names| draw(rng, &Steps::Named(names))).collect();
    named.into_iter().chain((0..count).map(|_| draw(rng, &Steps::Drawn(most)))).collect()
}

fn draw(rng: &mut Rng, what: &Steps<'_>) -> Group {
    let dims = draw_dims(rng);
    let plain = rng.below(2) == 0;
    let mut group =
        Group { dims, plain, buffers: Vec::new(), steps: Vec::new(), unstored: Vec::new(), compared: Vec::new() };
    let mut known: Vec<Known> = Vec::new();
    let all = fusable();
    let steps = match what {
        Steps::Drawn(most) => 1 + rng.below(*most),
        Steps::Named(names) => names.len(),
    };
    while group.steps.len() < steps {
        let name = match what {
            Steps::Named(names) => Some(names[group.steps.len()]),
            Steps::Drawn(_) => None,
        };
        let kind = if name.is_some() { 2 } else { rng.below(12) };
        let (work, dtypes, result) = match kind {
            0 => {
                let dtype = any_dtype(rng);
                let value = if dtype.is_float() { Scalar::from(0.75) } else { Scalar::one(dtype) };
                (SequenceWork::Fill(value), vec![], dtype)
            }
            1 => {
                let dtype = any_dtype(rng);
                (SequenceWork::Copy, vec![dtype], dtype)
            }
            _ => {
                let (op, dtype, to) = match name.unwrap_or_else(|| all[rng.below(all.len())]) {
                    KernelName::Op(op, dtype) => (op, dtype, None),
                    KernelName::WithNumbers(op, dtype, _) => (op, dtype, None),
                    KernelName::Cast(from, to) => (Op::Cast, from, Some(to)),
                    other => panic!("{other} is no step of a group"),
                };
                let kernel = Kernel { op, device: DeviceKind::CUDA, dtype, run: |_| Ok(()) };
                let mut inputs = vec![dtype; op.arity()];
                if op == Op::Where {
                    inputs[0] = DType::Bool;
                }
                let result = to.unwrap_or(op.elementwise_output(dtype));
                let mut params = Params { to, ..Params::default() };
                // A number in place of an input of some steps, and of those that would refuse others.
                let must = op.refuses_elements(dtype);
                let place = if must { 1 } else { rng.below(3) };
                let number =
                    params.with_number(place, if dtype.is_float() { Scalar::from(0.75) } else { Scalar::one(dtype) });
                if number.numbers().fit(op) && (must || rng.below(3) == 0) {
                    params = number;
                    inputs = (0..op.arity())
                        .filter(|&input| !params.numbers().contains(input))
                        .map(|input| inputs[input])
                        .collect();
                }
                (SequenceWork::Kernel(kernel, params), inputs, result)
            }
        };
        // The inputs broadcast to the shape of the group, and the last has it.
        let last = dtypes.len().saturating_sub(1);
        let inputs =
            dtypes.into_iter().enumerate().map(|(place, dtype)| group.input(rng, &mut known, dtype, place < last));
        let inputs: Vec<Known> = inputs.collect();
        let over = inputs.iter().position(|input| input.whole && input.dtype.size() == result.size());
        let output = match over.filter(|_| rng.below(3) == 0) {
            // The step has written over the old value, so no later step may read that.
            Some(over) => {
                known.retain(|value| value.buffer != inputs[over].buffer);
                Known { dtype: result, ..inputs[over].clone() }
            }
            None => {
                let views = [View::Contiguous, View::Contiguous, View::Permuted, View::Sliced, View::Stepped];
                let view = if group.plain { View::Contiguous } else { views[rng.below(5)] };
                group.buffer(rng, result, view, None)
            }
        };
        let number = group.steps.len();
        if number + 1 < steps && rng.below(2) == 0 {
            group.unstored.push(number);
            group.compared[output.buffer] = false;
        } else {
            group.compared[output.buffer] = true;
        }
        let mut operands: Vec<SequenceOperand> = inputs.iter().map(|input| operand(input, Access::Read)).collect();
        operands.push(operand(&output, Access::Write));
        group.steps.push(SequenceStep { work, operands });
        known.push(output);
    }
    group
}

fn any_dtype(rng: &mut Rng) -> DType {
    DType::ALL[rng.below(DType::ALL.len())]
}

impl Group {
    /// A new buffer, and a view of it that broadcasts to the shape of the group.
    fn buffer(&mut self, rng: &mut Rng, dtype: DType, view: View, dims: Option<Vec<usize>>) -> Known {
        let whole = dims.is_none() && view != View::Broadcast;
        let tensor = Tensor::new(rng, dtype, dims.as_ref().unwrap_or(&self.dims), view, Pool::Wild);
        let known = Known { buffer: self.buffers.len(), dtype, layout: tensor.layout, whole };
        self.buffers.push(tensor);
        self.compared.push(true);
        known
    }

    /// A known value of the dtype, or a new one, which may have axes of size 1 if `smaller`.
    fn input(&mut self, rng: &mut Rng, known: &mut Vec<Known>, dtype: DType, smaller: bool) -> Known {
        let shape = Shape::new(&self.dims).unwrap();
        let fits = |value: &&Known| value.dtype == dtype && (smaller || *value.layout.shape() == shape);
        let fitting: Vec<&Known> = known.iter().filter(fits).collect();
        if !fitting.is_empty() && rng.below(5) > 0 {
            return fitting[rng.below(fitting.len())].clone();
        }
        let smaller = smaller && rng.below(3) == 0;
        let plain = self.plain;
        let one = |rng: &mut Rng| plain || rng.below(2) == 0;
        let smaller = smaller.then(|| self.dims.iter().map(|&dim| if one(rng) { 1 } else { dim }).collect());
        let view = if plain { View::Contiguous } else { VIEWS[rng.below(VIEWS.len())] };
        let value = self.buffer(rng, dtype, view, smaller);
        known.push(value.clone());
        value
    }

    /// The sequence of the steps; `make` gets the description of the group.
    fn sequence(&mut self, make: &mut dyn FnMut(&FusedGroup) -> Option<FusedKernel>) -> CommandSequence {
        let sizes: Vec<usize> =
            self.buffers.iter_mut().map(|it| it.storage(Access::Read).layout().elements()).collect();
        let label = ProgramStep { number: 0, name: "drawn", site: Site::caller() };
        let steps = self.steps.iter().map(|step| (step.clone(), label)).collect();
        let sequence = CommandSequence::new(DeviceKind::CUDA, &sizes, None, steps).unwrap();
        let group = SequenceGroup { steps: 0..self.steps.len(), block: 0, unstored: self.unstored.clone() };
        sequence.fused(&[group], make).unwrap()
    }

    fn describe(&mut self) -> FusedGroup {
        let mut found = None;
        self.sequence(&mut |group| {
            found = Some(group.clone());
            None
        });
        found.unwrap()
    }
}

/// A fused kernel: its decoded PTX, and what of it has been reached.
type Fused<'a> = (&'a streamvm_ptx::Module, &'a RefCell<Coverage>);

/// How a group runs.
#[derive(Copy, Clone)]
struct How<'a> {
    /// The fused kernel, if the steps are fused.
    fused: Option<(&'a FusedGroup, Fused<'a>)>,
    /// Whether the fused kernel is launched in another way of the same meaning: with one block, which takes elements one by one.
    otherwise: bool,
}

/// Runs commands at once.
struct Simulated<'a> {
    how: How<'a>,
    launches: usize,
    /// How many launches took four elements at a time.
    vectors: usize,
}

impl Commands for Simulated<'_> {
    fn begin_step(&mut self, _: ProgramStep, _: &[usize]) {}

    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        self.launches += 1;
        plan(call)?.iter().for_each(|launch| _ = Runner::Planned.run(launch, 1));
        Ok(())
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        self.launches += 1;
        plan_copy(source, target).iter().for_each(|launch| _ = Runner::Planned.run(launch, 1));
        Ok(())
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        self.launches += 1;
        plan_fill(target, value)?.iter().for_each(|launch| _ = Runner::Planned.run(launch, 1));
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), streamvm_ep::Error> {
        unreachable!("no step is another device's")
    }

    fn wait(&mut self, _: EventId) -> Result<(), streamvm_ep::Error> {
        unreachable!("no step is another device's")
    }

    fn graphs(&mut self) -> Option<&mut dyn Graphs> {
        Some(self)
    }
}

impl Graphs for Simulated<'_> {
    fn launch_fused(&mut self, _: &FusedKernel, views: &mut [Operand<'static>]) -> Result<bool, Error> {
        let Some((group, fused)) = self.how.fused else { return Ok(false) };
        self.launches += 1;
        let Some(mut launch) = plan_fused(group, views)? else { return Ok(true) };
        if self.how.otherwise {
            // A block goes on where another would have begun.
            launch.blocks = 1;
            launch.arguments.vectors = 0;
        }
        self.vectors += launch.arguments.vectors as usize;
        let (module, coverage) = fused;
        interpreter::run_fused(module, &launch, views, &mut coverage.borrow_mut());
        Ok(true)
    }

    fn begin_graph(&mut self, _: GraphKey<'_>, _: &[Operand<'static>]) -> Result<GraphStart, Error> {
        Ok(GraphStart::Queue)
    }

    fn begin_block_graph(
        &mut self,
        _: GraphKey<'_>,
        _: &[Operand<'static>],
        _: GraphBlocks,
    ) -> Result<GraphStart, Error> {
        Ok(GraphStart::Queue)
    }

    fn begin_block(&mut self, _: BlockStart, _: &Operand<'static>) -> Result<(), Error> {
        Ok(())
    }

    fn begin_else(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn loops_run(&mut self) -> LoopsRun {
        LoopsRun::default()
    }

    fn end_graph(&mut self, _: bool) -> Result<bool, Error> {
        Ok(false)
    }

    fn begin_lanes(&mut self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn enter_lane(&mut self, _: usize, _: &[usize]) -> Result<(), Error> {
        Ok(())
    }

    fn mark_lane(&mut self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn end_lanes(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Runs the steps. Returns how many kernels were launched, and how many took four elements at a time.
fn run(group: &mut Group, how: How<'_>) -> (usize, usize) {
    let sequence = group.sequence(&mut |_| Some(FusedKernel::default()));
    let mut operands: Vec<Operand> = group.buffers.iter_mut().map(|buffer| buffer.storage(Access::ReadWrite)).collect();
    let mut stream = Simulated { how, launches: 0, vectors: 0 };
    sequence.execute(&mut stream, &mut operands, &mut SegmentRun::new(0)).unwrap();
    (stream.launches, stream.vectors)
}

const SEED: u64 = 81;

/// Runs a group as a fused kernel, and step by step by kernels of one op: both must leave the same bits. Returns how many kernels took four elements at a time.
fn compare(group: &mut Group, number: usize, described: &FusedGroup, how: How<'_>) -> usize {
    let before = group.buffers.clone();
    let (steps, _) = run(group, How { fused: None, ..how });
    let expected = std::mem::replace(&mut group.buffers, before);
    let (launches, by_four) = run(group, how);
    assert_eq!((steps, launches), (group.steps.len(), 1));
    for (buffer, (found, expected)) in group.buffers.iter().zip(&expected).enumerate() {
        if !group.compared[buffer] {
            continue;
        }
        let what = format!("group {number}, buffer {buffer}:\n{}", fused_ptx(described).unwrap());
        assert!(found.same_outside(expected), "wrote outside the view, {what}");
        for (place, pair) in found.dense().values.into_iter().zip(expected.dense().values).enumerate() {
            let same = match pair {
                (Value::Float(one), Value::Float(other)) => {
                    one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan())
                }
                (one, other) => one == other,
            };
            assert!(same, "element {place} is {:?}, not {:?}, {what}", pair.0, pair.1);
        }
    }
    by_four
}

#[test]
#[allow(clippy::print_stdout, reason = "what was reached is for people to read")]
fn fused_kernels_of_drawn_groups_do_what_their_steps_do() {
    let mut rng = Rng(SEED + 1);
    let (mut vectors, mut reached, mut all) = (0, 0, 0);
    for (number, mut group) in all_groups(&mut rng, 30, 24).into_iter().enumerate() {
        let described = group.describe();
        let ptx = fused_ptx(&described).unwrap();
        // No multiplication and addition may become one step: that is done where neither says how it rounds.
        let loose = |line: &&str| ["\tadd.f", "\tmul.f", "\tsub.f"].iter().any(|start| line.starts_with(start));
        assert_eq!(ptx.lines().find(loose), None, "{ptx}");
        let module = streamvm_ptx::Module::new(&ptx).unwrap_or_else(|error| panic!("{error}\n{ptx}"));
        let coverage = RefCell::new(Coverage::new(&module));
        for otherwise in [false, true] {
            let fused = Some((&described, (&module, &coverage)));
            vectors += compare(&mut group, number, &described, How { fused, otherwise });
        }
        let counts = coverage.into_inner().counts(&module);
        (reached, all) = (reached + counts.0, all + counts.1);
    }
    println!("fused kernels: {reached} of {all} instructions have run, {} %", 100 * reached / all);
    assert!(vectors > 8, "{vectors} kernels took four elements at a time");
    assert!(2 * reached > all, "{reached} of {all} instructions have run");
}
