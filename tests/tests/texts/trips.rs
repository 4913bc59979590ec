//! How many source files a call goes through until its kernel runs: those of the functions on the stack, in a debug build, in inline mode, where one thread does all.

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceKind, Mode, Vm};
use streamvm_cli::emit::devices::{Available, Devices};
use streamvm_cli::execute::run::{Engine, run};
use streamvm_cli::syntax::parser::parse;
use streamvm_cli::syntax::source::Source;
use streamvm_tests::{CPU, noting_kernels, trip};

/// The most files of a trip.
const MOST: usize = 15;

fn check(what: &str, first: &str, last: &str, files: &[String]) {
    assert!(files.len() <= MOST, "{what} goes through {} files: {files:#?}", files.len());
    for station in [first, last] {
        assert!(files.iter().any(|file| file == station), "{what} does not come through {station}: {files:#?}");
    }
}

#[test]
fn calls_go_through_few_files_to_their_kernels() {
    let vm = Vm::builder().mode(Mode::Inline).kernels(&noting_kernels(DeviceKind::CPU)).build().expect("an engine");
    let x = vm.zeros(CPU, DType::F32, &[4]).expect("a tensor");
    x.wait().expect("it is filled");
    let eager = trip(|| drop(x.relu().expect("it is submitted")));
    check("an eager call", "instructions/src/eager/ops.rs", "ep/cpu/src/stream.rs", &eager);

    // Two steps, since a program of one is submitted as an eager call is.
    let options = CompileOptions { fuse: false, ..CompileOptions::default() };
    let jit = vm.jit("f", ["x"], [], |r, [x], []| r.fetch("y", &x.relu()?.neg()?)).with_options(options);
    drop(jit.run([&x]).expect("it is submitted"));
    let again = trip(|| drop(jit.run([&x]).expect("it is submitted")));
    check("a run of a program", "vm/src/programs/jit.rs", "ep/cpu/src/sequence/run_work.rs", &again);

    let source = Source::from_text("t.svm", "", "let y = relu (fill f32 4 value 1 on cpu:0)\nprint y\n");
    let script = parse(&source).expect("a script");
    let available = Available { devices: vec![CPU], ..Available::default() };
    let devices = Devices::resolve(&script, available).expect("its devices");
    let line = trip(|| run(Engine::new(&vm), &source, &script, &devices, &mut Vec::new(), None).expect("it runs"));
    check("a line of a script", "cli/src/execute/run.rs", "ep/cpu/src/stream.rs", &line);
}
