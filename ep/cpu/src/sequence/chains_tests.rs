//! Chains compute what the kernels of their steps compute, and store what others read.

use proptest::prelude::*;
use streamvm_ep::{
    Access, DeviceKind, FnContext, Params, SequenceBuffer, SequenceError, SequenceGroup, SequenceOperand, SequenceStep,
    Shape,
};

use super::*;
use crate::sequence::CpuSequence;
use crate::sequence::group::Group;

/// Where an operand of a drawn step comes from.
#[derive(Copy, Clone, Debug)]
enum Given {
    /// The first or the second feed.
    Feed(usize),
    /// One element for all.
    Single,
    /// The result of the step so many steps before, or the first feed.
    Before(usize),
    /// A number, beside a tensor; else the first feed.
    Number(f64),
}

/// A step. Its result is in scratch memory, unless it is `kept`. `in_place`: if its first operand is in a buffer, and is not the single element, the result is
/// written over it.
#[derive(Clone, Debug)]
struct Drawn {
    op: Op,
    from: [Given; 2],
    kept: bool,
    in_place: bool,
}

const OPS: [Op; 12] = [
    Op::Neg,
    Op::Abs,
    Op::Relu,
    Op::Sqrt,
    Op::Reciprocal,
    Op::Add,
    Op::Sub,
    Op::Mul,
    Op::Div,
    Op::Min,
    Op::Max,
    // Of no chain.
    Op::Floor,
];

/// Buffers of the feeds and of the single element, before those of the results.
const FEEDS: usize = 3;

impl Drawn {
    /// The place and the value of the input that is a number.
    fn number(&self) -> Option<(usize, f64)> {
        match self.from {
            _ if self.op.arity() < 2 => None,
            [Given::Number(value), _] => Some((0, value)),
            [_, Given::Number(value)] => Some((1, value)),
            _ => None,
        }
    }
}

fn step(op: Op, dtype: DType, operands: Vec<SequenceOperand>) -> SequenceStep {
    step_with(Params::default(), op, dtype, operands)
}

fn step_with(params: Params, op: Op, dtype: DType, operands: Vec<SequenceOperand>) -> SequenceStep {
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, dtype).expect("a kernel");
    SequenceStep { work: SequenceWork::Kernel(kernel, params), operands }
}

/// The memory of each result. With `scratch`, results that are not kept are in scratch memory.
fn homes(drawn: &[Drawn], scratch: bool) -> Vec<SequenceMemory> {
    let mut homes: Vec<SequenceMemory> = Vec::new();
    // Of the results, whether they lie in buffers also with scratch memory.
    let mut in_buffer: Vec<bool> = Vec::new();
    for (place, it) in drawn.iter().enumerate() {
        let overwritten = match it.from[0] {
            Given::Feed(index) => Some(SequenceMemory::Buffer { index, offset: 0 }),
            Given::Before(back) if back < place => in_buffer[place - 1 - back].then(|| homes[place - 1 - back]),
            Given::Before(_) => Some(SequenceMemory::Buffer { index: 0, offset: 0 }),
            Given::Single | Given::Number(_) => None,
        };
        let overwritten = overwritten.filter(|_| it.in_place);
        in_buffer.push(it.kept || overwritten.is_some());
        homes.push(overwritten.unwrap_or(match scratch && !it.kept {
            true => SequenceMemory::Scratch(place),
            false => SequenceMemory::Buffer { index: FEEDS + place, offset: 0 },
        }));
    }
    homes
}

/// The drawn steps over `length` elements.
fn steps(drawn: &[Drawn], dtype: DType, length: usize, scratch: bool) -> Vec<SequenceStep> {
    let all = Layout::contiguous(Shape::new(&[length]).expect("a shape"));
    let homes = homes(drawn, scratch);
    let result = |place: usize, access| SequenceOperand { memory: homes[place], dtype, layout: all, access };
    let of_step = |(place, it): (usize, &Drawn)| {
        let input = |from: Given| match from {
            Given::Before(back) if back < place => result(place - 1 - back, Access::Read),
            Given::Single => SequenceOperand {
                memory: SequenceMemory::Buffer { index: 2, offset: 0 },
                dtype,
                layout: Layout::contiguous(Shape::SCALAR).broadcast_to(all.shape()).expect("a view"),
                access: Access::Read,
            },
            Given::Feed(_) | Given::Before(_) | Given::Number(_) => {
                let index = if let Given::Feed(index) = from { index } else { 0 };
                SequenceOperand {
                    memory: SequenceMemory::Buffer { index, offset: 0 },
                    dtype,
                    layout: all,
                    access: Access::Read,
                }
            }
        };
        let number = it.number();
        let params = number.map_or(Params::default(), |(place, value)| Params::default().with_number(place, value));
        let tensors = (0..it.op.arity()).filter(|place| number.is_none_or(|(number, _)| number != *place));
        let inputs = tensors.map(|place| input(it.from[place]));
        step_with(params, it.op, dtype, inputs.chain([result(place, Access::Write)]).collect())
    };
    drawn.iter().enumerate().map(of_step).collect()
}

/// Where the elements of a buffer lie in the storage of its operand: how many elements are skipped before the first, and the distance of neighbours.
#[derive(Copy, Clone, Debug)]
struct Place {
    skipped: usize,
    stride: usize,
}

impl Place {
    /// The view of a buffer with so many elements; the single element of buffer 2 is a scalar.
    fn layout(self, index: usize, length: usize) -> Layout {
        let shape = if index == 2 { Shape::SCALAR } else { Shape::new(&[length]).expect("a shape") };
        Layout::with_strides(shape, &[self.stride][..shape.rank()], self.skipped).expect("a layout")
    }

    /// A storage, in words, that has the elements of `words` at this place, and another number everywhere else.
    fn spread(self, words: &[u64], length: usize, size: usize) -> Vec<u64> {
        let end = self.skipped + length * self.stride;
        let mut storage = vec![u64::MAX / 3; (end * size).div_ceil(8) + 1];
        (0..length).for_each(|it| copy_element((words, it), (&mut storage, self.skipped + it * self.stride), size));
        storage
    }
}

/// Copies an element of `size` bytes from one place to another.
fn copy_element((from, at): (&[u64], usize), (to, place): (&mut [u64], usize), size: usize) {
    for byte in 0..size {
        let (source, target) = (at * size + byte, place * size + byte);
        let value = from[source / 8].to_ne_bytes()[source % 8];
        let mut word = to[target / 8].to_ne_bytes();
        word[target % 8] = value;
        to[target / 8] = u64::from_ne_bytes(word);
    }
}

/// Runs a sequence over buffers of words of 8 bytes each.
fn run(sequence: &CpuSequence, dtype: DType, (length, results): (usize, usize), data: &mut [Vec<u64>]) {
    let operand = |(index, words): (usize, &mut Vec<u64>)| {
        let shape = if index == 2 { Shape::SCALAR } else { Shape::new(&[length]).expect("a shape") };
        // SAFETY: a vector of its own for each operand, with a word for each element, borrowed until the end of this function.
        unsafe { Operand::new(words.as_mut_ptr().cast(), dtype, Layout::contiguous(shape), Access::ReadWrite) }
    };
    let mut operands: Vec<Operand> = data[..FEEDS + results].iter_mut().enumerate().map(operand).collect();
    sequence.run(&mut FnContext::new(&mut operands).expect("buffers of their own"), 0).expect("it runs");
}

/// [`run`] over operands whose elements lie at these places; the last one is that of all further buffers. Checks that nothing beside them is written.
fn run_at(
    places: &[Place],
    sequence: &CpuSequence,
    dtype: DType,
    (length, results): (usize, usize),
    data: &mut [Vec<u64>],
) {
    let place = |index: usize| places[index.min(places.len() - 1)];
    let length_of = |index: usize| if index == 2 { 1 } else { length };
    let spread = |(index, words): (usize, &Vec<u64>)| place(index).spread(words, length_of(index), dtype.size());
    let mut storages: Vec<Vec<u64>> = data[..FEEDS + results].iter().enumerate().map(spread).collect();
    let operand = |(index, storage): (usize, &mut Vec<u64>)| {
        let layout = place(index).layout(index, length);
        // SAFETY: a vector of its own for each operand, with room for the last element, borrowed until the end of this function.
        unsafe { Operand::new(storage.as_mut_ptr().cast(), dtype, layout, Access::ReadWrite) }
    };
    let mut operands: Vec<Operand> = storages.iter_mut().enumerate().map(operand).collect();
    sequence.run(&mut FnContext::new(&mut operands).expect("buffers of their own"), 0).expect("it runs");
    for (index, (words, storage)) in data.iter_mut().zip(&storages).enumerate() {
        let Place { skipped, stride } = place(index);
        let length = length_of(index);
        (0..length).for_each(|it| copy_element((storage, skipped + it * stride), (words, it), dtype.size()));
        assert_eq!(*storage, place(index).spread(words, length, dtype.size()), "buffer {index}: bytes beside the view");
    }
}

/// Bits of the elements; all NaN are one.
fn bits(words: &[u64], dtype: DType, length: usize) -> Vec<u64> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let of = |element: &[u8]| match dtype {
        DType::F32 => {
            let it = f32::from_ne_bytes(element.try_into().expect("four bytes"));
            if it.is_nan() { u64::MAX } else { it.to_bits().into() }
        }
        _ => {
            let it = f64::from_ne_bytes(element.try_into().expect("eight bytes"));
            if it.is_nan() { u64::MAX } else { it.to_bits() }
        }
    };
    bytes.chunks_exact(dtype.size()).take(length).map(of).collect()
}

/// Numbers of all kinds, as the words of a buffer.
fn feed(dtype: DType, length: usize, salt: usize) -> Vec<u64> {
    const KINDS: [f64; 12] =
        [0.0, -0.0, 1.0, -1.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40, -3.25e30, 0.1, -7.0, 1e-310];
    let number = |place: usize| match (place * 7 + salt) % 23 {
        kind if kind < KINDS.len() => KINDS[kind],
        other => (place as f64 - length as f64 / 3.0) / (other as f64 + 0.7),
    };
    let bytes: Vec<u8> = match dtype {
        DType::F32 => (0..length).flat_map(|place| (number(place) as f32).to_ne_bytes()).collect(),
        _ => (0..length).flat_map(|place| number(place).to_ne_bytes()).collect(),
    };
    let mut words = vec![0u64; length.max(1)];
    for (place, byte) in bytes.into_iter().enumerate() {
        let mut word = words[place / 8].to_ne_bytes();
        word[place % 8] = byte;
        words[place / 8] = u64::from_ne_bytes(word);
    }
    words
}

fn place() -> impl Strategy<Value = Place> {
    (0..70usize, 1..4usize).prop_map(|(skipped, stride)| Place { skipped, stride })
}

fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
    let from = prop_oneof![
        (0..2usize).prop_map(Given::Feed),
        Just(Given::Single),
        prop::sample::select(vec![0.0, -0.0, 0.5, -3.0, 1e-45, f64::INFINITY, f64::NAN]).prop_map(Given::Number),
        // Mostly the step before.
        Just(Given::Before(0)),
        Just(Given::Before(0)),
        (0..4usize).prop_map(Given::Before),
    ];
    let from = [from.clone().boxed(), from.boxed()];
    let step = (0..OPS.len(), from, any::<bool>(), prop::bool::weighted(0.2));
    let step = step.prop_map(|(op, from, kept, in_place)| Drawn { op: OPS[op], from, kept, in_place });
    prop::collection::vec(step, 1..12).prop_map(|mut steps| {
        if let Some(last) = steps.last_mut() {
            last.kept = true;
        }
        steps
    })
}

/// Around the sizes of vectors and tiles; Miri takes minutes for long ones.
fn length() -> BoxedStrategy<usize> {
    if cfg!(miri) {
        (1..20usize).boxed()
    } else {
        prop_oneof![1..20usize, 60..70usize, 125..135usize, 250..300usize].boxed()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chains_give_the_bits_of_kernels(
        drawn in drawn(),
        dtype in prop_oneof![Just(DType::F32), Just(DType::F64)],
        length in length(),
        block in prop_oneof![Just(1000usize), 1..140usize],
        places in prop::collection::vec(place(), 1..6),
    ) {
        let results = drawn.len();
        let words = |results| -> Vec<Vec<u64>> {
            let feeds = [feed(dtype, length, 3), feed(dtype, length, 11), feed(dtype, 1, 9)];
            feeds.into_iter().chain((0..results).map(|_| vec![0; length])).collect()
        };
        let size = dtype.size();
        let sizes: Vec<usize> = (0..FEEDS + results).map(|index| if index == 2 { size } else { length * size }).collect();
        let alone = CpuSequence::new(&sizes, steps(&drawn, dtype, length, false), &[]).expect("steps");
        let groups = [SequenceGroup { steps: 0..results, block, unstored: vec![] }];
        let group = CpuSequence::new(&sizes, steps(&drawn, dtype, length, true), &groups).expect("a group");
        let (mut expected, mut found) = (words(results), words(results));
        run(&alone, dtype, (length, results), &mut expected);
        run(&group, dtype, (length, results), &mut found);
        // The same as views of larger storages, step by step and as a group.
        let over = |scratch: bool, groups: &[SequenceGroup]| {
            let place = |index: usize| places[index.min(places.len() - 1)];
            let buffer = |index: usize| match place(index) {
                // Without gaps a buffer may be either.
                Place { stride: 1, skipped } if (skipped + index).is_multiple_of(2) => SequenceBuffer::Bytes(sizes[index]),
                place => SequenceBuffer::View { layout: place.layout(index, length), element: size },
            };
            let mut steps = steps(&drawn, dtype, length, scratch);
            for operand in steps.iter_mut().flat_map(|step| &mut step.operands) {
                if let SequenceMemory::Buffer { index, .. } = operand.memory && index != 2 {
                    operand.layout = Place { skipped: 0, ..place(index) }.layout(index, length);
                }
            }
            let buffers = (0..FEEDS + results).map(buffer).collect();
            let sequence = CpuSequence::over(buffers, steps, groups, &[]).expect("steps");
            let mut data = words(results);
            run_at(&places, &sequence, dtype, (length, results), &mut data);
            data
        };
        let views = [over(false, &[]), over(true, &groups)];
        let in_buffers = homes(&drawn, true).into_iter().filter_map(|memory| match memory {
            SequenceMemory::Buffer { index, .. } => Some(index),
            SequenceMemory::Scratch(_) => None,
        });
        for buffer in in_buffers {
            let [expected, found] = [&expected, &found].map(|data| bits(&data[buffer], dtype, length));
            prop_assert_eq!(&found, &expected, "buffer {} of {:?}", buffer, drawn);
            for data in &views {
                prop_assert_eq!(&bits(&data[buffer], dtype, length), &expected, "buffer {} of {:?} at {:?}", buffer, drawn, places);
            }
        }
    }
}

/// The items of a group as text: numbers of single steps, and chains in brackets, in which a star says that the result is stored.
fn shown(steps: Vec<SequenceStep>) -> String {
    shown_in_blocks(steps, 64)
}

fn shown_in_blocks(steps: Vec<SequenceStep>, block: usize) -> String {
    let group = Group::new(0, steps, block).expect("a group");
    let of_item = |item: &GroupItem| match item {
        GroupItem::Step(place) => place.to_string(),
        GroupItem::Chain(chain) => {
            let mut places = chain.steps.clone();
            // The first link takes the first operand of the first step.
            let links = chain.links[1..].iter().map(|link| match link.work {
                LinkWork::Store => "*".to_owned(),
                _ => format!(" {}", places.next().expect("a step for each link")),
            });
            format!("[{}]", links.collect::<String>().trim_start())
        }
    };
    group.items().iter().map(of_item).collect::<Vec<_>>().join(" ")
}

fn of(op: Op, from: [Given; 2]) -> Drawn {
    Drawn { op, from, kept: false, in_place: false }
}

#[test]
#[cfg_attr(miri, ignore = "a function has several addresses there, so no kernel is known as ours")]
fn steps_that_hand_on_their_result_are_a_chain() {
    use Given::{Before, Feed, Number, Single};
    let shown = |drawn: &[Drawn]| shown(steps(drawn, DType::F32, 100, true));
    let add = |from| of(Op::Add, from);
    let kept = |it: Drawn| Drawn { kept: true, ..it };
    let first = || add([Feed(0), Feed(1)]);
    assert_eq!(shown(&[first(), add([Before(0), Feed(0)]), kept(add([Feed(1), Before(0)]))]), "[0 1 2*]");
    assert_eq!(shown(&[kept(first())]), "0", "a step alone runs by its kernel");
    assert_eq!(shown(&[kept(first()), kept(add([Before(0), Single]))]), "[0* 1*]", "what is kept is stored");
    assert_eq!(
        shown(&[first(), add([Before(0), Feed(0)]), kept(add([Before(0), Before(1)]))]),
        "[0* 1 2*]",
        "a later step reads the first result from memory"
    );
    assert_eq!(shown(&[first(), kept(of(Op::Mul, [Before(0), Before(0)]))]), "[0 1*]", "the value twice");
    let numbers = [of(Op::Mul, [Feed(0), Number(0.5)]), kept(of(Op::Sub, [Number(2.0), Before(0)]))];
    assert_eq!(shown(&numbers), "[0 1*]", "numbers on both sides");
    assert_eq!(
        shown(&[first(), first(), kept(add([Before(0), Before(1)]))]),
        "0 [1 2*]",
        "the second step does not read the first result"
    );
    let floor = || of(Op::Floor, [Before(0), Feed(0)]);
    assert_eq!(shown(&[first(), floor(), kept(of(Op::Neg, [Before(0), Feed(0)]))]), "0 1 2", "no link for the op");
    let negs = [first(), of(Op::Neg, [Before(0), Feed(0)]), floor(), kept(of(Op::Abs, [Before(0), Feed(0)]))];
    assert_eq!(shown(&negs), "[0 1*] 2 3", "the step after the chain reads its result from memory");
}

/// `t = x + y; y = t + y; u = -y; z = u + y`: the last step reads the new `y`.
#[test]
#[cfg_attr(miri, ignore = "a function has several addresses there, so no kernel is known as ours")]
fn an_operand_that_was_written_is_read_anew() {
    let all = Layout::contiguous(Shape::new(&[20]).expect("a shape"));
    let operand = |memory, access| SequenceOperand { memory, dtype: DType::F32, layout: all, access };
    let buffer = |index| SequenceMemory::Buffer { index, offset: 0 };
    let [x, y, z] = [0, 1, 3].map(buffer);
    let steps = |t, u| {
        let add = |a, b, to| {
            let operands = vec![operand(a, Access::Read), operand(b, Access::Read), operand(to, Access::Write)];
            step(Op::Add, DType::F32, operands)
        };
        let neg = step(Op::Neg, DType::F32, vec![operand(y, Access::Read), operand(u, Access::Write)]);
        vec![add(x, y, t), add(t, y, y), neg, add(u, y, z)]
    };
    let in_scratch = || steps(SequenceMemory::Scratch(0), SequenceMemory::Scratch(2));
    assert_eq!(shown(in_scratch()), "[0 1* 2 3*]");
    let results = |steps, groups: &[SequenceGroup]| {
        let sequence = CpuSequence::new(&[80, 80, 4, 80, 80, 80], steps, groups).expect("steps");
        let mut data = [[1.5f32; 20], [0.25; 20], [0.0; 20], [0.0; 20], [0.0; 20], [0.0; 20]];
        let operand = |(index, elements): (usize, &mut [f32; 20])| {
            let shape = if index == 2 { Shape::SCALAR } else { *all.shape() };
            // SAFETY: an array of its own for each operand, borrowed until the end of the closure.
            unsafe {
                Operand::new(elements.as_mut_ptr().cast(), DType::F32, Layout::contiguous(shape), Access::ReadWrite)
            }
        };
        let mut operands: Vec<Operand> = data.iter_mut().enumerate().map(operand).collect();
        sequence.run(&mut FnContext::new(&mut operands).expect("arrays of their own"), 0).expect("it runs");
        (data[1], data[3])
    };
    let expected = results(steps(buffer(4), buffer(5)), &[]);
    assert_eq!(expected, ([2.0; 20], [0.0; 20]));
    assert_eq!(results(in_scratch(), &[SequenceGroup { steps: 0..4, block: 64, unstored: vec![] }]), expected);
}

/// A block of one row has an axis of size 1, along which the column has a stride.
#[test]
#[cfg_attr(miri, ignore = "a function has several addresses there, so no kernel is known as ours")]
fn a_column_is_one_element_for_a_block_of_one_row() {
    let shape = Shape::new(&[8, 100]).expect("a shape");
    let all = Layout::contiguous(shape);
    let column = Layout::with_strides(shape, &[1, 0], 0).expect("a layout");
    let operand = |memory, layout, access| SequenceOperand { memory, dtype: DType::F32, layout, access };
    let buffer = |index| SequenceMemory::Buffer { index, offset: 0 };
    let add = |a, to| {
        let column = operand(buffer(1), column, Access::Read);
        step(Op::Add, DType::F32, vec![operand(a, all, Access::Read), column, operand(to, all, Access::Write)])
    };
    let steps = || vec![add(buffer(0), SequenceMemory::Scratch(0)), add(SequenceMemory::Scratch(0), buffer(2))];
    assert_eq!(shown_in_blocks(steps(), 150), "[0 1*]");
    assert_eq!(shown_in_blocks(steps(), 250), "0 1", "a block of two rows has two elements of the column");
}

/// Scratch memory that holds another result by the time it is read does not count as a reader of the first.
#[test]
#[cfg_attr(miri, ignore = "a function has several addresses there, so no kernel is known as ours")]
fn a_result_is_not_stored_for_readers_of_another() {
    use Given::{Before, Feed};
    let mut steps = steps(
        &[
            of(Op::Add, [Feed(0), Feed(1)]),
            of(Op::Neg, [Before(0), Feed(0)]),
            of(Op::Floor, [Feed(0), Feed(0)]),
            Drawn { kept: true, ..of(Op::Add, [Before(1), Before(0)]) },
        ],
        DType::F32,
        100,
        true,
    );
    // The third step writes to the memory of the first result, and the fourth reads it from there.
    let memory = SequenceMemory::Scratch(0);
    steps[2].operands[1].memory = memory;
    steps[3].operands[1].memory = memory;
    assert_eq!(shown(steps), "[0 1*] 2 3");
}

#[test]
#[cfg_attr(miri, ignore = "a function has several addresses there, so no kernel is known as ours")]
fn operands_that_are_no_plain_elements_are_in_no_chain() {
    let all = Layout::contiguous(Shape::new(&[8, 100]).expect("a shape"));
    let whole = |index, layout, access| SequenceOperand {
        memory: SequenceMemory::Buffer { index, offset: 0 },
        dtype: DType::F32,
        layout,
        access,
    };
    let row = Layout::contiguous(Shape::new(&[100]).expect("a shape"));
    let column = Layout::contiguous(Shape::new(&[8, 1]).expect("a shape"));
    let shown_with = |other: Layout| {
        let add = |from, to| {
            let operands =
                vec![whole(from, all, Access::Read), whole(1, other, Access::Read), whole(to, all, Access::Write)];
            step(Op::Add, DType::F32, operands)
        };
        shown(vec![add(0, 2), add(2, 3)])
    };
    assert_eq!(shown_with(all), "[0* 1*]");
    assert_eq!(shown_with(Layout::contiguous(Shape::SCALAR)), "[0* 1*]");
    assert_eq!(shown_with(row), "[0* 1*]", "a block is a part of one row, and so are its elements of the row");
    assert_eq!(shown_with(column), "[0* 1*]", "a block has one element of the column");
    let gaps = Layout::with_strides(*all.shape(), &[1, 8], 0).expect("a layout");
    assert_eq!(shown_with(gaps), "0 1");
    let integers = |from, to| {
        let operands = [whole(from, all, Access::Read), whole(1, all, Access::Read), whole(to, all, Access::Write)];
        step(Op::Add, DType::I32, operands.map(|it| SequenceOperand { dtype: DType::I32, ..it }).to_vec())
    };
    assert_eq!(shown(vec![integers(0, 2), integers(2, 3)]), "0 1");
}

/// A kernel that a caller has put in the place of ours is called, and one for another dtype refuses the call.
#[test]
#[cfg_attr(miri, ignore = "a function has several addresses there, so no kernel is known as ours")]
fn kernels_that_are_not_ours_are_in_no_chain() {
    let feeds = [Given::Feed(0), Given::Feed(1)];
    let drawn = [of(Op::Add, feeds), Drawn { kept: true, ..of(Op::Add, [Given::Before(0), Given::Feed(0)]) }];
    let with = |change: &dyn Fn(&mut streamvm_ep::Kernel)| {
        let mut steps = steps(&drawn, DType::F32, 100, true);
        if let SequenceWork::Kernel(kernel, _) = &mut steps[1].work {
            change(kernel);
        }
        shown(steps)
    };
    assert_eq!(with(&|_| ()), "[0 1*]", "ours");
    assert_eq!(with(&|kernel| kernel.run = |_| Ok(())), "0 1");
    let double = streamvm_kernels::builtin().get(Op::Add, DeviceKind::CPU, DType::F64).expect("a kernel");
    assert_eq!(with(&|kernel| *kernel = double), "0 1");
}

/// Of a chain in which an operand is not aligned, the kernel of that step refuses the call, as without chains.
#[test]
fn an_operand_that_is_not_aligned_is_refused() {
    let all = Layout::contiguous(Shape::new(&[16]).expect("a shape"));
    let operand = |index, offset, access| SequenceOperand {
        memory: SequenceMemory::Buffer { index, offset },
        dtype: DType::F32,
        layout: all,
        access,
    };
    let add = |from, offset, to| {
        let operands =
            vec![operand(from, 0, Access::Read), operand(0, offset, Access::Read), operand(to, 0, Access::Write)];
        step(Op::Add, DType::F32, operands)
    };
    let steps = vec![add(0, 0, 1), add(1, 2, 2)];
    let sequence =
        CpuSequence::new(&[68, 64, 64], steps, &[SequenceGroup { steps: 0..2, block: 64, unstored: vec![] }])
            .expect("a group");
    let mut data = [vec![0u64; 9], vec![0; 8], vec![0; 8]];
    let bytes = [68, 64, 64];
    let operand = |(words, bytes): (&mut Vec<u64>, usize)| {
        let shape = Shape::new(&[bytes]).expect("a shape");
        // SAFETY: a vector of its own for each operand, borrowed until the end of the test.
        unsafe { Operand::new(words.as_mut_ptr().cast(), DType::U8, Layout::contiguous(shape), Access::ReadWrite) }
    };
    let mut operands: Vec<Operand> = data.iter_mut().zip(bytes).map(operand).collect();
    let refused = sequence.run(&mut FnContext::new(&mut operands).expect("buffers of their own"), 0);
    let refused = refused.expect_err("it is not aligned");
    assert!(matches!(refused, SequenceError::Step { step: 1, .. }), "{refused}");
    assert!(refused.to_string().contains("multiples of 4"), "{refused}");
}

/// Large enough that several threads compute blocks, if the machine has them.
#[test]
#[cfg_attr(miri, ignore = "Miri takes minutes for as many elements as threads divide")]
fn threads_compute_different_blocks_of_a_chain() {
    use Given::{Before, Feed};
    const LENGTH: usize = (1 << 18) + 5;
    let drawn = [of(Op::Add, [Feed(0), Feed(1)]), Drawn { kept: true, ..of(Op::Mul, [Before(0), Feed(0)]) }];
    let sizes = [LENGTH * 4, LENGTH * 4, 4, LENGTH * 4, LENGTH * 4];
    let groups = [SequenceGroup { steps: 0..2, block: 1000, unstored: vec![] }];
    let alone = CpuSequence::new(&sizes, steps(&drawn, DType::F32, LENGTH, false), &[]).expect("steps");
    let group = CpuSequence::new(&sizes, steps(&drawn, DType::F32, LENGTH, true), &groups).expect("a group");
    let words = || -> Vec<Vec<u64>> {
        let feeds = [feed(DType::F32, LENGTH, 3), feed(DType::F32, LENGTH, 11), vec![0]];
        feeds.into_iter().chain((0..2).map(|_| vec![0; LENGTH])).collect()
    };
    let (mut expected, mut found) = (words(), words());
    run(&alone, DType::F32, (LENGTH, 2), &mut expected);
    streamvm_kernels::set_threads(4);
    run(&group, DType::F32, (LENGTH, 2), &mut found);
    streamvm_kernels::set_threads(1);
    assert!(bits(&found[4], DType::F32, LENGTH) == bits(&expected[4], DType::F32, LENGTH));
}

#[test]
fn a_chain_over_no_elements_runs() {
    use Given::{Before, Feed};
    let drawn = [of(Op::Add, [Feed(0), Feed(1)]), Drawn { kept: true, ..of(Op::Mul, [Before(0), Feed(0)]) }];
    let groups = [SequenceGroup { steps: 0..2, block: 64, unstored: vec![] }];
    let group = CpuSequence::new(&[0, 0, 4, 0, 0], steps(&drawn, DType::F32, 0, true), &groups).expect("a group");
    let mut data = vec![vec![7u64]; 5];
    run(&group, DType::F32, (0, 2), &mut data);
    assert_eq!(data, [[7]; 5]);
}
