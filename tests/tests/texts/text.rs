//! Lists as text: what is printed and parsed back does what the built one does.

use streamvm::instructions::Kind;
use streamvm::{DType, DeviceId, Error, InstructionList, InstructionsBuilder, Place, Tensor, TimeLimit, Vm};
use streamvm_tests::{CPU, list};

/// A list over two devices and three lanes, whose results end in host tensors, in order.
fn built() -> InstructionList {
    list(|b| {
        let other = DeviceId::cpu(1);
        let x = b.full(Place::Host, DType::F32, &[4, 3], 2.5)?;
        let on_device = b.on_lane(1).copy(&x, CPU)?;
        let flipped = on_device.permute(&[1, 0])?;
        let rows = on_device.slice(0, 1..3)?;
        b.on_lane(1).fill(&rows, -1.0)?;
        let product = b.on_lane(1).matmul(&flipped, &on_device)?;
        let (sums, soft, memory) = {
            let mut b = b.on_lane(2);
            let sums = b.sum(&product, &[1])?;
            let soft = b.softmax(&product, 1)?;
            let soft = b.softmax_backward(&soft, &product, 1)?;
            let memory = b.allocate(other, DType::F32, &[3, 3])?;
            b.copy_into(&soft, &memory)?;
            (sums, soft, memory)
        };
        b.barrier();
        let (key, source) = (stream(other, 0), stream(CPU, 2));
        let event = b.record(source);
        b.wait(key, source, &event);
        let whole = b.cast(&memory, DType::I64)?;
        let framed = b.pad(&whole, &[1], 1, 2, -7)?;
        let chosen_class = b.one_hot(&framed, 4, DType::I64)?;
        let whole = b.sum(&chosen_class, &[2])?;
        let row = b.full(other, DType::F32, &[3], 2.0)?;
        let normal = b.layer_norm(&memory, &row, &row, 1e-12)?;
        let indices = b.cast(&row, DType::I64)?;
        let rows = b.index_select(&normal, &indices)?;
        b.release(&rows);
        let turned = b.flip(&normal, &[0])?;
        let numbers = b.arange(other, DType::I64, 5, -1, -2)?;
        b.release(&numbers);
        let line = b.linspace(other, DType::F32, 0.5, 2.5, 3)?;
        let lower = b.tril(&turned, -1)?;
        let lower = b.add(&lower, &line)?;
        let ones = b.eye(other, DType::I64, 3, 3)?;
        let places = b.sum(&ones, &[0])?;
        let places = b.repeat(&places.unsqueeze(0)?, &[3, 1])?;
        let taken = b.take_along_axis(&lower, &places, 0)?;
        let memory = b.scatter_add(&memory, &places, &taken, 0)?;
        let memory = b.sort(&memory, 1, true)?;
        let (few, at) = b.topk(&memory, 2, 0, false)?;
        let order = b.argsort(&at, 1, false)?;
        let few = b.take_along_axis(&few, &order, 1)?;
        let memory = b.add(&memory, &few.slice(0, 0..1)?)?;
        let compared = b.gt(&product, &product.slice(0, 0..1)?)?;
        let chosen = b.where_(&compared, &product, &soft)?;
        b.touch(CPU, &[&chosen]);
        b.release(&soft);
        b.global_sync();
        for result in [&sums, &chosen, &memory] {
            b.copy(result, Place::Host)?;
        }
        b.copy(&whole, Place::Host).map(drop)
    })
}

fn stream(device: DeviceId, lane: u32) -> streamvm::StreamKey {
    streamvm::StreamKey::new(device, streamvm::StreamType::Compute, lane)
}

/// The results of a list: the targets of its last copies.
fn results(list: &InstructionList) -> Vec<Tensor> {
    let copies = list.instructions().iter().rev().take_while(|line| matches!(line.kind, Kind::Copy));
    copies.filter_map(|line| list.uses(line).last()?.as_tensor().cloned()).collect()
}

fn run(list: InstructionList) -> Vec<String> {
    let vm = Vm::builder().cpu_devices(2).build().expect("an engine");
    let results = results(&list);
    assert_eq!(results.len(), 4);
    vm.submit(list).expect("the engine takes it").wait().expect("it passes");
    let read = |tensor: &Tensor| match tensor.dtype() {
        DType::I64 => format!("{:?}", tensor.to_vec::<i64>()),
        _ => format!("{:?}", tensor.to_vec::<f32>().map(|v| v.into_iter().map(f32::to_bits).collect::<Vec<_>>())),
    };
    results.iter().map(read).collect()
}

#[test]
fn a_parsed_list_prints_the_same_and_gives_the_same_results() {
    let list = built();
    let text = list.to_string();
    let parsed: InstructionList = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(parsed.to_string(), text);
    let (expected, found) = (run(list), run(parsed));
    assert!(expected.iter().all(|text| text.starts_with("Ok")), "{expected:?}");
    assert_eq!(found, expected);
}

#[test]
fn two_parses_of_one_text_share_nothing() {
    let text = built().to_string();
    let vm = Vm::builder().cpu_devices(2).build().expect("an engine");
    let lists: Vec<InstructionList> = (0..2).map(|_| text.parse().expect("it parses")).collect();
    for list in lists {
        vm.submit(list).expect("each is a list of its own").wait().expect("it passes");
    }
}

#[test]
fn a_list_that_uses_tensors_of_before_refuses_to_run_from_text() {
    let vm = Vm::builder().build().expect("an engine");
    let x = vm.full(CPU, DType::F32, &[2], 1.0).expect("a fill");
    let text = list(|b| b.neg(&x).map(drop)).to_string();
    let parsed: InstructionList = text.parse().expect("it parses");
    assert!(matches!(vm.submit(parsed), Err(Error::NeverWritten { .. })), "a parsed tensor is a new one");
}

/// Lists that are nearly right: whatever was deleted, doubled or swapped, the text is refused or the list is, and the
/// engine goes on.
#[test]
fn damaged_text_is_refused_and_harms_no_engine() {
    let vm = Vm::builder().cpu_devices(2).build().expect("an engine");
    let text = built().to_string();
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let joined = |words: &[Vec<&str>]| words.iter().map(|line| line.join(" ")).collect::<Vec<_>>().join("\n");
    let mut taken = 0;
    for line in 0..words.len() {
        for word in 0..words[line].len() {
            for damage in 0..4 {
                let mut damaged = words.clone();
                match damage {
                    0 => drop(damaged[line].remove(word)),
                    1 => damaged[line].insert(word, words[line][word]),
                    2 => damaged[line][word] = words[(line + 1) % words.len()].get(word).unwrap_or(&"%99"),
                    _ => damaged[line][word] = "0",
                }
                let Ok(list) = joined(&damaged).parse::<InstructionList>() else { continue };
                if let Ok(ticket) = vm.submit(list) {
                    taken += 1;
                    let _ = TimeLimit(streamvm_tests::PATIENCE).run(|| ticket.wait());
                }
            }
        }
    }
    assert!(taken > 0, "some damage leaves a list");
    vm.wait_all().ok();
    assert_eq!(vm.full(CPU, DType::F32, &[2], 1.0).and_then(|x| x.to_vec::<f32>()), Ok(vec![1.0; 2]));
    let mut builder = InstructionsBuilder::new();
    builder.barrier();
    assert_eq!(vm.submit(builder.finish()).and_then(|ticket| ticket.wait()), Ok(()));
}
