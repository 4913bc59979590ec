//! Lists as text: whatever is built reads back as itself, and whatever is read is a list or an error with its line.
//!
//! `STREAMVM_SEED=n` replays a run, `STREAMVM_CASES=n` makes it longer.

use crate::cases::cases;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};
use streamvm_ep::{Convolution, DType, DeviceId, MemoryKind, Op, Pooling, Priority, Scalar, Shape};
use streamvm_instructions::{
    Ahead, Critical, Generator, InstructionList, InstructionsBuilder, Kind, LaunchOptions, ParseListError, Place,
    PlanOptions, Role, Tensor, Var, plan,
};
use streamvm_stream::WaitKind;

const DEVICES: [DeviceId; 4] = [DeviceId::cpu(0), DeviceId::cpu(1), DeviceId::cuda(0), DeviceId::sim(7)];

fn explore<S: Strategy>(strategy: S, check: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seed = std::env::var("STREAMVM_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(0)
    });
    let config = Config {
        cases: cases(64) as u32,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    };
    match TestRunner::new(config).run(&strategy, check) {
        Ok(()) => {}
        Err(TestError::Fail(why, input)) => panic!("STREAMVM_SEED={seed}: {why}\nfor {input:?}"),
        Err(error) => panic!("STREAMVM_SEED={seed}: {error}"),
    }
}

/// Any sequence of calls, each drawn by a few numbers; what is refused adds nothing.
#[derive(Clone, Debug)]
struct Call {
    what: u8,
    a: prop::sample::Index,
    b: prop::sample::Index,
    device: usize,
    host: bool,
    lane: u32,
    dims: Vec<usize>,
    dtype: usize,
    value: Scalar,
    name: String,
}

fn call() -> impl Strategy<Value = Call> {
    let value = prop_oneof![
        any::<f64>().prop_map(Scalar::F64),
        any::<i64>().prop_map(Scalar::I64),
        any::<u8>().prop_map(|value| Scalar::I64(value.into())),
        any::<bool>().prop_map(Scalar::Bool),
    ];
    let name = prop_oneof!["[ -~]{0,12}", any::<String>()];
    (
        0..23u8,
        any::<(prop::sample::Index, prop::sample::Index)>(),
        (0..DEVICES.len(), any::<bool>(), 0..3u32),
        prop::collection::vec(0..4usize, 0..4),
        0..DType::ALL.len(),
        (value, name),
    )
        .prop_map(|(what, (a, b), (device, host, lane), dims, dtype, (value, name))| Call {
            what,
            a,
            b,
            device,
            host,
            lane,
            dims,
            dtype,
            value,
            name,
        })
}

fn build(calls: &[Call]) -> InstructionList {
    let mut builder = InstructionsBuilder::new();
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut events = Vec::new();
    let vars = [Var::new(), Var::new()];
    let criticals = [Critical::new("port"), Critical::new(calls.first().map_or("", |call| &call.name))];
    let mut section = None;
    for call in calls {
        let place = if call.host { Place::Host } else { Place::Device(DEVICES[call.device]) };
        let dtype = DType::ALL[call.dtype];
        let priority = [Priority::Low, Priority::Normal, Priority::High][call.lane as usize];
        let ahead = [Ahead::No, Ahead::Direct, Ahead::First, Ahead::No][call.device];
        let mut builder = builder.on_lane(call.lane);
        let mut builder = if call.what == 3 { builder.on_pinned() } else { builder.on_compute() };
        let mut builder = builder.with_launch_options(LaunchOptions { priority, clean_up: call.host, ahead });
        if tensors.is_empty() || call.what == 0 {
            let memory = MemoryKind::ALL[(call.lane as usize + call.dims.len()) % MemoryKind::ALL.len()];
            tensors.push(Tensor::unbound(place, memory, dtype, Shape::new(&call.dims).expect("small")));
        }
        let (a, b) = (call.a.get(&tensors).clone(), call.b.get(&tensors).clone());
        let stream = format!("compute@{}:{}", DEVICES[call.device], call.lane).parse().expect("a stream");
        let made: Option<Tensor> = match call.what {
            0 => None,
            1 => builder.full(place, dtype, &call.dims, call.value).ok(),
            2 => builder.allocate(place, dtype, &call.dims).ok(),
            3 | 4 => builder.op(Op::ALL[call.device * 7 % Op::ALL.len()], &[&a], Default::default()).ok(),
            5 if call.host => builder.clamp(&a, call.value, &b).ok(),
            5 if call.lane > 0 => builder.sub(call.value, &a).ok(),
            5 => builder.add(&a, &b).ok(),
            6 => builder.copy(&a, place).ok(),
            7 => a.slice(0, 0..call.dims.len().min(a.shape().dims().first().copied().unwrap_or(0))).ok(),
            8 => a.permute(&(0..a.shape().rank()).rev().collect::<Vec<_>>()).ok(),
            9 => a.broadcast_to(&[&[2], a.shape().dims()].concat()).ok(),
            10 => a.try_reshape(&[a.shape().elements()]).ok().flatten(),
            11 => builder.copy_into(&a, &b).map(|()| a.clone()).ok(),
            12 => {
                let uses = [a.read(), b.update(), vars[0].read(), vars[1].write()];
                let _ = builder.call_fn(call.name.clone(), DEVICES[call.device], uses, |_| Ok(()));
                None
            }
            13 => {
                let _ = builder.access(call.name.clone(), a.write(), |_| Ok(()));
                builder.host_fn(call.name.clone(), DEVICES[call.device], || Ok(()));
                None
            }
            14 => {
                builder.touch(place, &[&a, &b]);
                builder.release(&b);
                None
            }
            15 => {
                events.push((stream, builder.record(stream)));
                None
            }
            16 => {
                if let Some((source, event)) = events.get(call.a.index(events.len().max(1))) {
                    builder.wait(stream, *source, event);
                }
                None
            }
            17 => builder.pad(&a, &[0][..call.lane.min(1) as usize], call.lane, call.what.into(), call.value).ok(),
            19 => {
                let generator = Generator::at(call.dims.len() as u64, u64::MAX - 1);
                let _ = builder.randn_into(&generator, &a);
                builder.rand(&generator, DEVICES[call.device], dtype, &call.dims).ok()
            }
            18 if call.host => builder.layer_norm(&a, &b, &b, 0.1 * f64::from(call.lane)).ok(),
            18 if call.dims.len() > 1 => builder.tril(&a, i64::from(call.lane) - 1).ok(),
            18 => builder.one_hot(&a, call.dims.len(), dtype).ok(),
            20 | 21 => {
                match section.take() {
                    Some(open) => builder.end_section(open, &[&a, &b][..call.lane.min(2) as usize]),
                    None => {
                        let resources = [&criticals[0], &criticals[1]];
                        let resources = if call.host { &resources[..] } else { &resources[1..] };
                        section = builder.begin_section(resources, &[&a]).ok();
                    }
                }
                None
            }
            _ => {
                builder.barrier();
                builder.barrier_with(call.name.clone(), || Ok(()));
                builder.global_sync();
                None
            }
        };
        tensors.extend(made);
    }
    builder.finish()
}

#[test]
fn a_built_list_reads_back_as_itself() {
    explore(prop::collection::vec(call(), 1..24), |calls| {
        let list = build(&calls);
        let text = list.to_string();
        let again = InstructionList::parse(&text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(again.to_string(), text);
        prop_assert_eq!(again.len(), list.len());
        for (mine, theirs) in list.instructions().iter().zip(again.instructions()) {
            prop_assert_eq!(mine.stream, theirs.stream);
            prop_assert_eq!(mine.kind.name(), theirs.kind.name());
            prop_assert_eq!(mine.launch, theirs.launch);
            if let (Kind::Call { params: mine, .. }, Kind::Call { params: theirs, .. }) = (&mine.kind, &theirs.kind) {
                prop_assert_eq!(mine, theirs);
            }
            let (mine, theirs) = (list.uses(mine), again.uses(theirs));
            prop_assert_eq!(mine.len(), theirs.len());
            for (mine, theirs) in mine.iter().zip(theirs) {
                prop_assert_eq!(mine.access(), theirs.access());
                prop_assert_eq!(mine.ordering_access(), theirs.ordering_access());
                let (mine, theirs) = (mine.as_tensor(), theirs.as_tensor());
                prop_assert_eq!(mine.map(Tensor::layout), theirs.map(Tensor::layout));
                prop_assert_eq!(mine.map(Tensor::dtype), theirs.map(Tensor::dtype));
                prop_assert_eq!(mine.map(Tensor::place), theirs.map(Tensor::place));
                prop_assert_eq!(mine.map(Tensor::storage_bytes), theirs.map(Tensor::storage_bytes));
            }
        }
        Ok(())
    });
}

/// What was read, if anything, reads back as itself; what was not says a line of the text.
/// A line of the kind after this one, `None` before the first and after the last. The match has no default arm, so that a new kind
/// does not compile until it has a line here.
fn next_line(kind: Option<&Kind>) -> Option<&'static str> {
    Some(match kind {
        None => "call compute@cpu:0:0 neg t0 -> t1 f32[2]",
        Some(Kind::Call { .. }) => "copy compute@cpu:0:0 t0 -> t1 f32[2]",
        Some(Kind::Copy) => "fill compute@cpu:0:0 1.5 -> t1 f32[2]",
        Some(Kind::Fill(_)) => "alloc compute@cpu:0:0 -> t1 f32[2]",
        Some(Kind::Allocate) => "release compute@cpu:0:0 t0",
        Some(Kind::Release) => "touch compute@cpu:0:0 t0",
        Some(Kind::Touch) => "fn compute@cpu:0:0 \"f\" read t0",
        Some(Kind::Function { role: Role::Function, .. }) => "host compute@cpu:0:0 \"f\"",
        Some(Kind::Function { role: Role::Host, .. }) => "access compute@cpu:0:0 \"f\" update t0",
        Some(Kind::Function { role: Role::Access, .. }) => "cuda compute@cpu:0:0 \"f\" read t0",
        Some(Kind::Function { role: Role::Cuda, .. }) => "push compute@cpu:0:0 \"f\" read t0",
        Some(Kind::Function { role: Role::Push, .. }) => "program compute@cpu:0:0 \"f\" read t0",
        Some(Kind::Function { role: Role::Program | Role::ProgramWithCode | Role::Blocks, .. }) => {
            "record compute@cpu:0:0 e0"
        }
        Some(Kind::Record(_)) => "wait compute@cpu:0:0 compute@cpu:0:1 by #1",
        Some(Kind::Wait { kind: WaitKind::Device, .. }) => "hostwait compute@cpu:0:0 compute@cpu:0:1 by #1",
        Some(Kind::Wait { kind: WaitKind::Host, .. }) => "barrier barrier@cpu:0:0",
        Some(Kind::Barrier { .. }) => "sync barrier@cpu:0:0",
        Some(Kind::GlobalSync) => "begin critical@cpu:0:0 c0",
        Some(Kind::SectionBegin(_)) => "begin critical@cpu:0:0 c0\n%1 end critical@cpu:0:0 c0",
        Some(Kind::SectionEnd(_)) => return None,
    })
}

#[test]
fn every_kind_prints_as_a_line_that_reads_back() {
    let mut list = InstructionList::new();
    while let Some(line) = next_line(list.instructions().last().map(|instruction| &instruction.kind)) {
        let text = format!("t0 = tensor cpu:0 f32[2]\nc0 = critical \"port\"\n%0 {line}\n");
        list = InstructionList::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let last = line.rsplit("%1 ").next().and_then(|line| line.split_once(' ')).map(|(word, _)| word);
        assert_eq!(last, list.instructions().last().map(|instruction| instruction.kind.word()));
        let printed = list.to_string();
        let again = InstructionList::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        assert_eq!(again.to_string(), printed);
    }
}

fn survives(text: &str) -> Result<(), TestCaseError> {
    match InstructionList::parse(text) {
        Ok(list) => {
            let printed = list.to_string();
            let again = InstructionList::parse(&printed)
                .map_err(|error| TestCaseError::fail(format!("{error}\nin\n{printed}\nof\n{text}")))?;
            prop_assert_eq!(again.to_string(), printed);
        }
        Err(error) => prop_assert!((1..=text.lines().count().max(1)).contains(&error.line), "{error}"),
    }
    Ok(())
}

#[test]
fn any_text_is_a_list_or_an_error() {
    explore(any::<String>(), |text| survives(&text));
}

/// A word that starts with / begins a new line of the text, one that ends with = a declaration.
const WORDS: &str = r#"
    %0 %1 /%0 /%1 /%2 /t0= /t1= /v0= /c0= /e0= tensor view var critical event call copy fill alloc release touch fn
    host access record wait hostwait barrier sync begin end c0 critical@cpu:0:0 compute@cpu:0:0 h2d@cuda:0:0 barrier@cpu:0:0 add relu
    sum axes 0,1 keep to f32 f32[2] f32[] f32[0] bool[2,2] f32[4294967296,4294967296] -> t0 host:t0
    pinned:t1 cuda:0:t1 :t0 : v0 e0 by #3 # % %99999999999999999999 "a" " \ "\u{110000}" "\u{41}"
    strides 2,1 , offset 18446744073709551615 -1 1.0 nan inf true read write update cpu:0 pinned push workers@cpu:0:0 low high cleanup direct first
"#;

#[test]
fn any_words_of_the_language_are_a_list_or_an_error() {
    let words: Vec<String> = WORDS.split_whitespace().map(|word| word.replace('/', "\n").replace('=', " =")).collect();
    let words = prop::sample::select(words);
    explore(prop::collection::vec(words, 0..24), |words| survives(&words.join(" ")));
}

#[test]
fn a_list_with_a_mistake_is_a_list_or_an_error() {
    let mistake = (any::<prop::sample::Index>(), 0..4usize, any::<char>(), any::<prop::sample::Index>());
    let mistakes = prop::collection::vec(mistake, 1..4);
    explore((prop::collection::vec(call(), 1..8), mistakes), |(calls, mistakes)| {
        let mut chars: Vec<char> = build(&calls).to_string().chars().collect();
        for (at, what, char, other) in mistakes {
            if chars.is_empty() {
                break;
            }
            let at = at.index(chars.len());
            match what {
                0 => drop(chars.remove(at)),
                1 => chars.insert(at, char),
                2 => chars[at] = char,
                _ => {
                    let copied = chars[other.index(chars.len())];
                    chars[at] = copied;
                }
            }
        }
        survives(&chars.into_iter().collect::<String>())
    });
}

fn error(text: &str) -> ParseListError {
    InstructionList::parse(text).expect_err(text)
}

#[test]
fn errors_say_the_line_and_what_would_be_right() {
    let cases = [
        ("%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]\n%2 sync barrier@cpu:0:0", 2, "%1", "%2"),
        ("hello", 1, "an instruction such as %0, or a declaration such as t0 = …", "hello"),
        ("%0 dance compute@cpu:0:0", 1, "a kind of instruction such as call, copy or wait", "dance"),
        ("%0 sync", 1, "a stream such as compute@cpu:0:0", ""),
        ("%0 call compute@cpu:0:0 relu t0 -> t1 f32[2]", 1, "a tensor named before", "t0"),
        (
            "%0 call compute@cpu:0:0 dance t0 -> t1 f32[2]",
            1,
            "the name of an op (one of your own must be registered)",
            "dance",
        ),
        ("t0 = tensor cpu:0 f32[2]\n%0 copy compute@cpu:0:0 t0 t1", 2, "a tensor named before", "t1"),
        ("t0 = tensor cpu:0 f32[2]\n%0 copy compute@cpu:0:0 t0", 2, "-> and an output", ""),
        ("t0 = tensor cpu:0 f32[2", 1, "a type such as f32[2,3]", "f32[2"),
        ("t0 = tensor moon f32[2]", 1, "a place such as host or cuda:0", "moon"),
        ("t0 = tensor cpu:0 f32[2] too", 1, "the end of the line", "too"),
        ("t0 = var\nt0 = var", 2, "a name that is not declared yet", "t0"),
        ("a:b = var", 1, "a name of letters, digits and _ such as t0", "a:b"),
        ("e0 = var\n%0 record compute@cpu:0:0 e0", 2, "a name that is not declared yet", "e0"),
        ("%0 record compute@cpu:0:0", 1, "a name of letters, digits and _ such as t0", ""),
        ("v0 = var\n%0 fill compute@cpu:0:0 1.0 -> v0 f32[2]", 2, "a name that is not declared yet", "v0"),
        ("%0 fill compute@cpu:0:0 x -> t0 f32[2]", 1, "a value such as 0.5, 3 or true", "x"),
        ("%0 fn compute@cpu:0:0 name", 1, "a name in quotes", "name"),
        ("%0 fn compute@cpu:0:0 \"\\u41}\"", 1, "a name in quotes", "\"\\u41}\""),
        ("%0 fn compute@cpu:0:0 \"f\" reads t0", 1, "read, write or update", "reads"),
        (
            "t0 = tensor cpu:0 f32[2]\n%0 touch compute@cpu:0:0 host:t0",
            2,
            "the place where the tensor lives, cpu:0",
            "host:t0",
        ),
        ("t0 = tensor cpu:0 f32[2]\nt1 = view t0 f64[1] strides 1 offset 0", 2, "the owner's dtype f32", "f64"),
        (
            "t0 = tensor cpu:0 f32[2]\nt1 = view t0 f32[2] strides 1 offset 1",
            2,
            "a view within its storage",
            " 1 offset 1",
        ),
        ("%0 wait compute@cpu:0:0 compute@cpu:0:1 on e0", 1, "by", "on"),
    ];
    for (text, line, expected, found) in cases {
        let expected = ParseListError { line, expected: expected.to_owned(), found: found.to_owned() };
        assert_eq!(error(text), expected, "{text}");
    }
}

/// A list from a text promises what a built one does.
#[test]
fn a_text_is_held_to_the_rules_of_the_builder() {
    let cases = [
        ("%0 fill compute@cpu:0:0 1.5 -> t0 i32[2]", "does not fit i32"),
        ("%0 fill compute@cuda:0:0 1.5 -> host:t0 f32[2]", "lives on host"),
        ("%0 alloc compute@cuda:0:0 -> cuda:1:t0 f32[2]", "lives on cuda:1"),
        ("t0 = tensor cuda:0 f32[2]\n%0 copy compute@cpu:0:0 cuda:0:t0 -> cuda:1:t1 f32[2]", "lives on cuda:0"),
        ("t0 = tensor cuda:0 f32[2]\n%0 copy compute@cpu:0:0 cuda:0:t0 -> t1 f32[2]", "lives on cuda:0"),
        ("t0 = tensor host f32[2]\n%0 call compute@cpu:0:0 relu host:t0 -> t1 f32[2]", "host memory"),
        ("t0 = tensor cuda:0 f32[2]\n%0 call compute@cpu:0:0 relu cuda:0:t0 -> t1 f32[2]", "lives on cuda:0"),
        ("t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 relu t0 -> t1 f32[3]", "f32[2] is needed"),
        ("t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 relu t0 -> t1 f64[2]", "f32[2] is needed"),
        ("t0 = tensor cpu:0 f32[2]\n%0 copy compute@cpu:0:0 t0 -> t0 f32[2]", "has elements in common"),
        ("t0 = tensor cpu:0 f32[2]\n%0 fn compute@cpu:0:0 \"f\" read t0 write t0", "has elements in common"),
        ("t0 = tensor cuda:0 f32[2]\n%0 fn compute@cuda:0:0 \"f\" read t0", "lives in memory of cuda:0"),
        (
            "t0 = tensor cpu:0 f32[1]\nt1 = view t0 f32[2] strides 0 offset 0\n%0 fill compute@cpu:0:0 1.0 -> t1 f32[2]",
            "broadcasts",
        ),
        ("t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 sum axes 3 t0 -> t1 f32[]", "axis"),
        ("%0 call compute@cpu:0:0 uniform -> t0 f32[2]", "Extra::Random"),
        (
            "t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 layer_norm epsilon -1.0 t0 t0 t0 -> t1 f32[2]",
            "must be a finite number that is not negative",
        ),
        ("t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 index_select t0 t0 -> t1 f32[2]", "must be i32, i64 or u8"),
        ("%0 call compute@cpu:0:0 arange from 1 by 2 -> t0 f32[2]", "Extra::Floats"),
        ("%0 call compute@cpu:0:0 arange from 1.0 by 2.0 -> t0 i32[2]", "Extra::Integers"),
        ("%0 call compute@cpu:0:0 arange from 1 by 2.0 -> t0 i32[2]", "two integers"),
        ("%0 call compute@cpu:0:0 arange from 1 by true -> t0 i32[2]", "two integers"),
        ("t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 tril diagonal 1 t0 -> t1 f32[2]", "at least 2 axes"),
        ("t0 = tensor cpu:0 f32[2,2]\n%0 call compute@cpu:0:0 tril diagonal x t0 -> t1 f32[2,2]", "of a diagonal"),
        ("t0 = tensor cpu:0 f32[2,2]\n%0 call compute@cpu:0:0 triu t0 -> t1 f32[2,2]", "Extra::Diagonal"),
        ("t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 argsort axes 0 t0 -> t1 i64[2]", "Extra::Order"),
        ("t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 argsort axes 0 largest 1 t0 -> t1 i64[1]", "Extra::Order"),
        (
            "t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 argtopk axes 0 largest 3 t0 -> t1 i64[3]",
            "at most that count",
        ),
        (
            "t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 argtopk axes 0 smallest x t0 -> t1 i64[1]",
            "how many elements are wanted",
        ),
        ("%0 call compute@cpu:0:0 uniform seed 1 at 2 -> t0 i32[2]", "uniform takes f32"),
        ("%0 call compute@cpu:0:0 uniform seed 1 at 2 -> host:t0 f32[2]", "host memory"),
        ("%0 call compute@cpu:0:0 uniform seed 1 at 2 -> cpu:1:t0 f32[2]", "lives on cpu:1"),
        ("%0 call compute@cpu:0:0 uniform seed 1 at -2 -> t0 f32[2]", "the number of a block"),
        ("%0 barrier compute@cpu:0:0", "barrier on compute@cpu:0:0"),
        ("%0 host barrier@cpu:0:0 \"f\"", "host on barrier@cpu:0:0"),
        ("t0 = tensor cpu:0 f32[2]\n%0 host compute@cpu:0:0 \"f\" read t0", "the end of the line"),
        ("t0 = tensor cpu:0 f32[2]\n%0 access compute@cpu:0:0 \"f\" read t0 read t0", "the end of the line"),
        ("t0 = tensor cpu:0 f32[2]\n%0 fill compute@cpu:0:0 1.0 t0 -> t1 f32[2]", "as many inputs as it takes (0)"),
        ("v0 = var\n%0 copy compute@cpu:0:0 v0 -> t1 f32[2]", "a tensor named before"),
        // Threads of the host run workers and barriers, whatever the device.
        ("%0 fill workers@cuda:0:0 1.5 -> t0 f32[2]", "lives on cuda:0"),
        ("%0 alloc workers@sim:0:0 -> t0 f32[2]", "lives on sim:0"),
        ("t0 = tensor host f32[2]\n%0 copy workers@cuda:0:0 host:t0 -> t1 f32[2]", "lives on cuda:0"),
        ("t0 = tensor cuda:0 f32[2]\n%0 call workers@cuda:0:0 relu t0 -> t1 f32[2]", "lives on cuda:0"),
        ("t0 = tensor sim:0 f32[2]\n%0 fn workers@sim:0:0 \"f\" read t0", "lives on sim:0"),
        // A device reaches no memory of a device of another kind.
        ("t0 = tensor cuda:0 f32[2]\n%0 copy h2d@sim:0:0 cuda:0:t0 -> t1 f32[2]", "lives on cuda:0"),
        ("t0 = tensor sim:0 f32[2]\n%0 copy h2d@cuda:0:0 sim:0:t0 -> t1 f32[2]", "lives on sim:0"),
        ("t0 = tensor cuda:0 pinned f32[2]\n%0 copy d2h@sim:0:0 pinned:t0 -> t1 f32[2]", "lives on cuda:0"),
        ("t0 = tensor cpu:0 f32[2]\n%0 call compute@cpu:0:0 add t0 -> t1 f32[2]", "as many inputs as it takes (2)"),
    ];
    for (text, why) in cases {
        let error = error(text).to_string();
        assert!(error.contains(why), "{text}\n{error}");
    }
}

#[test]
fn names_of_functions_keep_every_character() {
    let name = "a \"b\" \\ \n\r\t\0 'c' é \u{301} \u{3000} \u{1F600} \u{7f} %0 t0 ->";
    let mut builder = InstructionsBuilder::new();
    builder.host_fn(name, DeviceId::cpu(0), || Ok(()));
    builder.barrier_with(name, || Ok(()));
    let list: InstructionList = builder.finish().to_string().parse().expect("it was printed");
    assert_eq!(list.instructions()[0].kind.name(), name);
    assert!(matches!(&list.instructions()[1].kind, Kind::Barrier { name: found, calls: true, .. } if found == name));
}

#[test]
fn how_a_function_is_run_is_kept() {
    for (name, priority) in [("", Priority::Normal), (" low", Priority::Low), (" high", Priority::High)] {
        for (clean_up, cleans) in [(false, ""), (true, " cleanup")] {
            for (ahead, goes) in [(Ahead::No, ""), (Ahead::Direct, " direct"), (Ahead::First, " first")] {
                let launch = LaunchOptions { priority, clean_up, ahead };
                let (mut builder, variable) = (InstructionsBuilder::new(), Var::new());
                let cpu = DeviceId::cpu(0);
                let mut on_workers = builder.on_workers();
                on_workers.with_launch_options(launch).push("first", cpu, [variable.write()], || Ok(()));
                on_workers.push("next", cpu, [variable.read()], || Ok(()));
                drop(on_workers);
                let text = builder.finish().to_string();
                assert!(text.contains(&format!("\"first\"{name}{cleans}{goes} write v0")), "{text}");
                let list: InstructionList = text.parse().expect("it was printed");
                let options: Vec<LaunchOptions> =
                    list.instructions().iter().map(|instruction| instruction.launch).collect();
                assert_eq!((&options, list.to_string()), (&vec![launch, LaunchOptions::default()], text));
                let planned = plan(list, &PlanOptions::default()).expect("it is planned").list;
                let functions = planned.instructions().iter().filter(|line| matches!(line.kind, Kind::Function { .. }));
                assert!(functions.map(|line| line.launch).eq(options), "{planned}");
            }
        }
    }
    let twice = "v0 = var\n%0 push workers@cpu:0:0 \"f\" low high write v0";
    assert_eq!(error(twice).expected, "read, write or update");
}

#[test]
fn a_text_that_is_too_long_is_refused_before_it_is_read() {
    let error = error(&" ".repeat((64 << 20) + 1));
    assert_eq!((error.line, error.expected.as_str()), (1, "at most 67108864 bytes"));
}

/// The limits that the counts of a text have; each text is one past its limit, and the same text without its last line
/// is read.
#[test]
fn counts_are_limited_whatever_their_lines_cost() {
    let past = |text: String, found: &str, limit: &str| {
        let error = error(&text);
        let last = text.lines().count();
        assert_eq!((error.line, error.expected.as_str(), error.found.as_str()), (last, limit, found));
        let without: String = text.lines().take(last - 1).flat_map(|line| [line, "\n"]).collect();
        InstructionList::parse(&without).expect("what is at the limit is read");
    };
    let most = 1 << 20;
    let names: String = (0..=most).map(|i| format!("a{i:x} = var\n")).collect();
    past(names, "1048577", "at most 1048576 tensors, variables, critical resources and events");
    let instructions: String = (0..=most).map(|i| format!("%{i} sync barrier@cpu:0:0\n")).collect();
    past(instructions, "1048577", "at most 1048576 instructions");
    let touches: String = (0..17).map(|i| format!("%{i} touch compute@cpu:0:0 {}\n", "a ".repeat(1 << 18))).collect();
    past(format!("a = var\n{touches}"), "4456448", "at most 4194304 operands");
    past(format!("a = var\n# {}", " ".repeat(most)), "1048578", "at most 1048576 bytes in a line");
}

/// Printing and planning used to look for each event among all others, so that a list of very many events took minutes.
#[test]
fn a_list_of_very_many_events_prints_and_plans() {
    let lines = (0..200_000).map(|i| format!("%{i} record compute@cpu:0:{} x{i}\n", i % 2));
    let list = InstructionList::parse(&lines.collect::<String>()).expect("a list");
    assert!(list.to_string().ends_with("%199999 record   compute@cpu:0:1       e199999\n"));
    let planned = plan(list, &PlanOptions::default()).expect("nothing waits");
    assert_eq!(planned.list.len(), 200_000);
}

/// The call that reads a text is where its instructions were issued.
#[test]
fn a_list_from_text_names_the_line_that_read_it() {
    let list = InstructionList::parse("%0 sync barrier@cpu:0:0").expect("a list");
    let (site, line) = (list.instructions()[0].site, line!() - 1);
    assert_eq!((site.file(), site.line()), (file!(), line));
}

#[test]
fn the_parameters_of_windows_read_back_as_themselves() {
    let mut builder = InstructionsBuilder::new();
    let shape = |dims: &[usize]| Shape::new(dims).unwrap();
    let tensor = |dims: &[usize]| Tensor::unbound(DEVICES[0].into(), MemoryKind::Device, DType::F32, shape(dims));
    let (x, weight) = (tensor(&[1, 4, 9, 8]), tensor(&[2, 2, 3, 2]));
    let by = Convolution { stride: [2, 1], padding: [1, 3], dilation: [1, 2], groups: 2 };
    let y = builder.conv2d(&x, &weight, by).unwrap();
    builder.conv2d_backward_weight(&x, &weight, &y, by).unwrap();
    builder.max_pool2d(&x, Pooling { window: [3, 2], stride: [1, 2], padding: [1, 0] }).unwrap();
    let text = builder.finish().to_string();
    for part in
        ["conv2d stride 2,1 padding 1,3 dilation 1,2 groups 2 t0 t1", "max_pool2d window 3,2 stride 1,2 padding 1,0 t0"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(InstructionList::parse(&text).unwrap().to_string(), text);
    let error = InstructionList::parse(&text.replace("stride 2,1", "stride 2")).unwrap_err().to_string();
    assert!(error.contains("a height and a width, such as 2,1"), "{error}");
}
