//! Source lines: every instruction knows the line of the program that issued it, whatever call made it.

use streamvm::instructions::ResourceId;
use streamvm::{
    Convolution, Critical, DType, Generator, InstructionsBuilder, MemoryKind, Op, Params, Place, Pooling, Shape, Site,
    Tensor, TimeLimit, Use, Var,
};
use streamvm_tests::{CPU, Notes};

struct Eager {
    notes: &'static Notes,
}

impl Eager {
    fn new() -> Eager {
        Eager { notes: Box::leak(Box::default()) }
    }

    fn tensor(&self, dtype: DType, shape: &[usize]) -> Tensor {
        let tensor = Tensor::unbound(CPU.into(), MemoryKind::Device, dtype, Shape::new(shape).expect("a shape"));
        assert!(tensor.resource().claim(self.notes.me()).is_ok());
        tensor.resource().keep(self.notes.me(), ResourceId(0), true);
        tensor
    }

    /// Where the instructions since the last call were issued.
    fn taken(&self) -> Vec<(String, Site)> {
        self.notes.taken()
    }
}

/// Makes each call, and checks that all that it submits has the call's own line.
macro_rules! each_at_its_line {
    ($eager:ident, $checked:ident: $($call:expr),* $(,)?) => {$(
        // One expression, so one line, though the macro spreads over many.
        let (result, line) = ($call.map(drop), line_of(stringify!($call)));
        let taken = $eager.taken();
        assert!(!taken.is_empty(), "{} submits nothing: {result:?}", stringify!($call));
        for (what, site) in taken {
            assert!(site.file().ends_with("locations.rs"), "{what} of {} is issued at {site}", stringify!($call));
            assert_eq!(site.line(), line, "{what} of {} is issued at {site}", stringify!($call));
        }
        $checked += 1;
    )*};
}

/// The line of this file that holds `call` and nothing else but a comma.
fn line_of(call: &str) -> u32 {
    let plain = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let wanted = plain(call);
    let mut lines = include_str!("locations.rs").lines().zip(1..);
    lines
        .find(|(text, _)| plain(text).trim_end_matches(',') == wanted)
        .map(|(_, line)| line)
        .expect("a line of its own")
}

/// A framework enters the place in the text of its user; what fails there names that place.
#[test]
fn calls_within_an_entered_site_are_issued_there() {
    let eager = Eager::new();
    let x = eager.tensor(DType::F32, &[2]);
    let (model, other) = (Site::in_text("model.py", 3, 1, None), Site::in_text("model.py", 4, 1, None));
    let scope = model.enter();
    x.relu().expect("it is issued");
    {
        let _inner = other.enter();
        x.neg().expect("it is issued");
    }
    x.exp().expect("it is issued");
    drop(scope);
    x.abs().expect("it is issued");
    let sites: Vec<Site> = eager.taken().into_iter().map(|(_, site)| site).collect();
    assert_eq!(sites[..3], [model, other, model]);
    assert!(sites.len() == 4 && sites[3].file().ends_with("locations.rs"), "{sites:?}");
}

#[test]
fn every_eager_call_is_issued_at_its_own_line() {
    let eager = Eager::new();
    let (x, y) = (eager.tensor(DType::F32, &[2, 2]), eager.tensor(DType::F32, &[2, 2]));
    let (bools, flat) = (eager.tensor(DType::Bool, &[2, 2]), x.permute(&[1, 0]).expect("a view"));
    let (indices, row) = (eager.tensor(DType::I32, &[2]), eager.tensor(DType::F32, &[2]));
    let classes = eager.tensor(DType::I64, &[2]);
    let (image, lines) = (eager.tensor(DType::F32, &[2, 2, 2, 2]), eager.tensor(DType::F32, &[2, 2, 2]));
    let mut checked = 0;
    each_at_its_line! { eager, checked:
        x.op(Op::Exp, &[], Params::default()),
        x.op(Op::Add, &[&y], Params::default()),
        bools.op(Op::Where, &[&x, &y], Params::default()),
        x.to(Place::Host),
        flat.reshape(&[4]),
        x.to_vec::<f32>(),
        flat.to_vec::<f32>(),
        TimeLimit(streamvm_tests::PATIENCE).run(|| x.to_vec::<f32>()),
        bools.to_vec::<bool>(),
        TimeLimit(streamvm_tests::PATIENCE).run(|| bools.to_vec::<bool>()),
        x.neg(),
        x.abs(),
        x.exp(),
        x.log(),
        x.sqrt(),
        x.tanh(),
        x.relu(),
        x.sigmoid(),
        Tensor::add(&x, &y),
        Tensor::sub(&x, &y),
        Tensor::mul(&x, &y),
        Tensor::div(&x, &y),
        x.minimum(&y),
        x.maximum(&y),
        x.pow(&y),
        x.eq(&y),
        x.ne(&y),
        x.lt(&y),
        x.le(&y),
        x.gt(&y),
        x.ge(&y),
        x.matmul(&y),
        x.sum(&[]),
        x.mean(&[0]),
        x.max(&[0]),
        x.min(&[1]),
        x.argmax(0),
        x.softmax(1),
        x.log_softmax(1),
        x.softmax_backward(&y, 1),
        x.log_softmax_backward(&y, 1),
        x.pad(&[0], 1, 0, 0.5),
        x.rms_norm(&row, 1e-5),
        x.cross_entropy(&classes),
        x.cross_entropy_backward(&classes, &row),
        image.conv2d(&image, Convolution::default()),
        lines.conv1d(&lines, Convolution::default()),
        image.max_pool2d(Pooling::square(2)),
        x.erf(),
        x.layer_norm(&row, &row, 1e-5),
        x.index_select(&indices),
        indices.one_hot(3, DType::F32),
        x.flip(&[0]),
        x.tril(0),
        x.cumsum(1),
        row.take_along_axis(&indices, 0),
        row.scatter_add(&indices, &row, 0),
        x.repeat(&[2, 1]),
        x.roll(1, 0),
        x.masked_fill(&bools, 0.5),
        x.argsort(0, true),
        x.sort(0, true),
        x.topk(1, 0, true).map(|(elements, _)| elements),
        x.cast(DType::F64),
        bools.where_(&x, &y),
        &x + &y,
        &x - &y,
        &x * &y,
        &x / &y,
        -&x,
    }
    assert_eq!(checked, 70);
}

/// Builds one instruction; the line is this function's caller's where the builder's call is written.
type Build<'a> = (&'a str, u32, &'a dyn Fn(&mut InstructionsBuilder));

#[test]
fn every_instruction_kind_is_issued_at_its_own_line() {
    let eager = Eager::new();
    let x = eager.tensor(DType::F32, &[2, 2]);
    let (y, bools, token) = (eager.tensor(DType::F32, &[2, 2]), eager.tensor(DType::Bool, &[2, 2]), Var::new());
    let (indices, generator) = (eager.tensor(DType::I32, &[2]), Generator::new(7));
    let row = eager.tensor(DType::F32, &[2]);
    let stream = "compute@cpu:0:0".parse().expect("a stream");
    let uses = || -> [Use; 2] { [x.read(), token.write()] };
    #[rustfmt::skip]
    let builds: &[Build<'_>] = &[
        ("exp", line!(), &|b| drop(b.op(Op::Exp, &[&x], Params::default()))),
        ("exp", line!(), &|b| drop(b.op_into(Op::Exp, &[&x], Params::default(), &y))),
        ("copy", line!(), &|b| drop(b.copy(&x, Place::Host))),
        ("copy", line!(), &|b| drop(b.copy_into(&x, &y))),
        ("fill", line!(), &|b| drop(b.full(CPU, DType::F32, &[1], 1.0))),
        ("fill", line!(), &|b| drop(b.fill(&x, 1.0))),
        ("alloc", line!(), &|b| drop(b.allocate(CPU, DType::F32, &[1]))),
        ("release", line!(), &|b| b.release(&x)),
        ("touch", line!(), &|b| b.touch(CPU, &[&x])),
        ("mine", line!(), &|b| drop(b.call_fn("mine", CPU, uses(), |_| Ok(())))),
        ("mine", line!(), &|b| b.host_fn("mine", CPU, || Ok(()))),
        ("mine", line!(), &|b| drop(b.access("mine", x.read(), |_| Ok(())))),
        ("record", line!(), &|b| drop(b.record(stream))),
        ("wait", line!(), &|b| b.wait(stream, stream, &streamvm::Event::new())),
        ("barrier", line!(), &|b| b.barrier()),
        ("barrier", line!(), &|b| b.barrier_with("mine", || Ok(()))),
        ("sync", line!(), &|b| b.global_sync()),
        ("begin", line!(), &|b| drop(b.begin_section(&[&Critical::new("port")], &[]).expect("it begins"))),
        ("neg", line!(), &|b| drop(b.neg(&x))),
        ("add", line!(), &|b| drop(b.add(&x, &y))),
        ("sum", line!(), &|b| drop(b.sum(&x, &[]))),
        ("argmax", line!(), &|b| drop(b.argmax(&x, 0))),
        ("softmax", line!(), &|b| drop(b.softmax(&x, 0))),
        ("log_softmax", line!(), &|b| drop(b.log_softmax(&x, 0))),
        ("softmax_backward", line!(), &|b| drop(b.softmax_backward(&x, &y, 0))),
        ("log_softmax_backward", line!(), &|b| drop(b.log_softmax_backward(&x, &y, 0))),
        ("uniform", line!(), &|b| drop(b.rand(&generator, CPU, DType::F32, &[2]))),
        ("normal", line!(), &|b| drop(b.randn(&generator, CPU, DType::F32, &[2]))),
        ("uniform", line!(), &|b| drop(b.rand_into(&generator, &x))),
        ("normal", line!(), &|b| drop(b.randn_into(&generator, &x))),
        ("pad", line!(), &|b| drop(b.pad(&x, &[0], 1, 0, 0.5))),
        ("gelu", line!(), &|b| drop(b.gelu(&x))),
        ("layer_norm", line!(), &|b| drop(b.layer_norm(&x, &row, &row, 1e-5))),
        ("index_select", line!(), &|b| drop(b.index_select(&x, &indices))),
        ("one_hot", line!(), &|b| drop(b.one_hot(&indices, 3, DType::F32))),
        ("arange", line!(), &|b| drop(b.arange(CPU, DType::F32, 0, 2, 1))),
        ("arange", line!(), &|b| drop(b.linspace(CPU, DType::F32, 0.0, 2.0, 1))),
        ("flip", line!(), &|b| drop(b.flip(&x, &[]))),
        ("triu", line!(), &|b| drop(b.triu(&x, 1))),
        ("scatter", line!(), &|b| drop(b.scatter(&row, &indices, &row, 0))),
        ("argtopk", line!(), &|b| drop(b.argtopk(&x, 1, 0, true))),
        ("argsort", line!(), &|b| drop(b.argsort(&x, 0, false))),
        ("copy", line!(), &|b| drop(b.repeat(&x, &[2, 1]))),
        ("copy", line!(), &|b| drop(b.roll(&x, 0, 1))),
        ("cast", line!(), &|b| drop(b.cast(&x, DType::F64))),
        ("where", line!(), &|b| drop(b.where_(&bools, &x, &y))),
    ];
    for (name, line, build) in builds {
        let mut builder = InstructionsBuilder::new();
        build(&mut builder);
        let list = builder.finish();
        let [instruction] = list.instructions() else { panic!("{name} at line {line} is one instruction") };
        assert_eq!((instruction.kind.name(), instruction.site.line()), (*name, *line), "{}", instruction.site);
        assert!(instruction.site.file().ends_with("locations.rs"), "{}", instruction.site);
    }
}
