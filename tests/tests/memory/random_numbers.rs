//! Random numbers of whole programs: the same in every mode, over lanes and devices, and never the same twice.

use std::collections::HashSet;

use streamvm::{DType, DeviceId, Generator, InstructionList, InstructionsBuilder, Mode, Tensor, Vm};

/// Draws on several lanes and devices, eagerly and in lists, between ops that take their time.
fn program(vm: &Vm, devices: &[DeviceId]) -> Vec<u32> {
    let generator = Generator::new(0x1234_5678_9abc);
    let mut drawn: Vec<Tensor> = Vec::new();
    for round in 0..6usize {
        let device = devices[round % devices.len()];
        let _lane = streamvm::Lane(round as u32 % 3).enter();
        let eager = vm.rand(&generator, device, DType::F32, &[5, 7]).expect("eager numbers");
        let mut builder = InstructionsBuilder::new();
        let product = builder.matmul(&eager, &eager.permute(&[1, 0]).expect("a view")).expect("an op");
        let mut on_lane = builder.on_lane(round as u32 % 2);
        let listed = on_lane.randn(&generator, device, DType::F32, &[5, 5]).expect("numbers of a list");
        let sum = on_lane.add(&product, &listed).expect("an op");
        on_lane.rand_into(&generator, &product.slice(1, 1..3).expect("a view")).expect("numbers into a view");
        drop(on_lane);
        vm.submit(builder.finish()).expect("the engine takes it");
        drawn.extend([eager, listed, sum, product]);
    }
    let bits = |tensor: &Tensor| tensor.to_vec::<f32>().expect("it passes").into_iter().map(f32::to_bits);
    drawn.iter().flat_map(bits).collect()
}

#[test]
fn a_program_draws_the_same_numbers_in_every_mode() {
    let cpus = [DeviceId::cpu(0), DeviceId::cpu(1)];
    let build = |mode| Vm::builder().cpu_devices(2).sim_devices(1).mode(mode).build().expect("an engine");
    let expected = program(&build(Mode::Inline), &cpus);
    for _ in 0..4 {
        assert_eq!(program(&build(Mode::Threaded), &cpus), expected);
    }
    for seed in 0..4 {
        assert_eq!(program(&build(Mode::Simulated { seed }), &cpus), expected, "seed {seed}");
    }
    // Where they are drawn is no matter either.
    assert_eq!(program(&build(Mode::Threaded), &[DeviceId::sim(0)]), expected);
}

#[test]
fn a_parsed_list_draws_what_the_built_one_does() {
    let vm = Vm::builder().build().expect("an engine");
    let mut builder = InstructionsBuilder::new();
    let x = builder.rand(&Generator::at(7, u64::MAX), DeviceId::cpu(0), DType::F64, &[9]).expect("numbers");
    let list = builder.finish();
    let parsed: InstructionList = list.to_string().parse().expect("it parses");
    let output = |list: &InstructionList| list.uses(&list.instructions()[0])[0].as_tensor().expect("a tensor").clone();
    let y = output(&parsed);
    vm.submit(list).expect("the engine takes it");
    vm.submit(parsed).expect("the engine takes it");
    assert_eq!(x.to_vec::<f64>().expect("it passes"), y.to_vec::<f64>().expect("it passes"));
}

#[test]
fn threads_that_share_a_generator_never_draw_the_same() {
    let (vm, generator) = (Vm::builder().build().expect("an engine"), Generator::new(3));
    let drawn: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let draw = || {
            let one = |_| vm.rand(&generator, DeviceId::cpu(0), DType::F64, &[3]).expect("numbers");
            let tensors: Vec<Tensor> = (0..50).map(one).collect();
            tensors.iter().flat_map(|tensor| tensor.to_vec::<f64>().expect("it passes")).collect::<Vec<f64>>()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    let all: HashSet<u64> = drawn.iter().flatten().map(|x| x.to_bits()).collect();
    // Of 53 bits two are never the same by chance.
    assert_eq!((all.len(), generator.position()), (600, 4 * 50 * 2));
}
