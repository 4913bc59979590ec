//! An encoder of random weights, beside a naive one in `f64`.

use crate::common::drawn::{Drawn, HIDDEN, config};
use crate::common::{bits, difference, engines};
use streamvm::report::PoolStats;
use streamvm::{DeviceId, MemoryKind, Mode, Place, StreamType, Vm};
use streamvm_minilm::bert::Bert;
use streamvm_minilm::config::Config;
use streamvm_minilm::layers::Placement;
use streamvm_minilm::tokens::Batch;

/// The encoder whose weights `drawn` draws.
fn encoder(vm: &Vm, device: DeviceId, config: &Config, placement: Placement, drawn: &mut Drawn) -> Bert {
    Bert::new(vm, device, config.clone(), placement, &mut |name, shape| Ok(drawn.draw(name, shape)))
        .expect("an encoder")
}

/// Texts of different lengths, so that all but one are padded.
const TEXTS: [&[u32]; 4] = [&[1, 7, 2], &[1, 30, 30, 4, 49, 11, 5, 16, 2], &[3], &[1, 8, 9, 10, 2]];

#[test]
fn an_encoder_of_random_weights_gives_what_a_naive_one_gives() {
    let mut first = None;
    for (name, vm) in engines() {
        let mut drawn = Drawn::default();
        let bert = encoder(&vm, DeviceId::cpu(0), &config(), Placement::Resident, &mut drawn);
        let found = bert.embed(&vm, &Batch::of(&TEXTS)).and_then(|result| result.to_vec::<f32>()).expect("embeddings");
        let expected: Vec<f64> = TEXTS.iter().flat_map(|text| drawn.embedding(text)).collect();
        let worst = difference(&found, &expected);
        assert!(worst <= 1e-5, "{name}: {worst:e} off");
        // One text alone, which needs no padding, has the same embedding.
        let alone = bert.embed(&vm, &Batch::of(&TEXTS[..1])).and_then(|result| result.to_vec::<f32>()).expect("one");
        assert!(difference(&alone, &expected[..HIDDEN]) <= 1e-5, "{name}");
        let first = first.get_or_insert_with(|| bits(&found));
        assert_eq!(*first, bits(&found), "{name} gives other bits than 1 thread");
    }
}

#[test]
fn a_token_that_the_vocabulary_does_not_have_is_named() {
    for (name, vm) in engines() {
        let mut drawn = Drawn::default();
        let bert = encoder(&vm, DeviceId::cpu(0), &config(), Placement::Resident, &mut drawn);
        let result = bert.embed(&vm, &Batch::of(&[&[1, 50, 2]])).and_then(|result| result.to_vec::<f32>());
        let text = result.expect_err("a token that is not there").to_string();
        assert!(
            text.contains("index_select: the index 50 is no row of the table") && text.contains("bert.rs"),
            "{name}: {text}"
        );
    }
}

#[test]
fn streamed_weights_give_the_bits_of_resident_ones() {
    // The second batch begins with the other buffer if the number of layers is odd.
    let batches = [&TEXTS[..], &TEXTS[1..3], &TEXTS[..1]];
    for layers in [1, 2, 3, 6] {
        let config = Config { num_hidden_layers: layers, ..config() };
        for (name, vm) in engines() {
            let embeddings = |placement| {
                let bert = encoder(&vm, DeviceId::cpu(0), &config, placement, &mut Drawn::default());
                // All are submitted before the first is read.
                let results = batches.map(|texts| bert.embed(&vm, &Batch::of(texts)).expect("submitted"));
                results.map(|result| bits(&result.to_vec::<f32>().expect("embeddings")))
            };
            assert_eq!(embeddings(Placement::Resident), embeddings(Placement::Streamed), "{layers} layers, {name}");
        }
    }
}

/// Whatever the number of texts and of tokens, and without compiling more than once.
#[test]
fn a_compiled_encoder_gives_the_bits_of_calls() {
    for (name, vm) in engines() {
        let [called, compiled] = [Placement::Resident, Placement::Compiled { texts: TEXTS.len(), tokens: 9 }]
            .map(|placement| encoder(&vm, DeviceId::cpu(0), &config(), placement, &mut Drawn::default()));
        let mut batches: Vec<&[&[u32]]> = (1..=TEXTS.len()).map(|end| &TEXTS[..end]).collect();
        batches.extend((0..TEXTS.len()).map(|text| &TEXTS[text..=text]));
        // All are submitted before the first is read.
        let results = batches.iter().map(|texts| {
            let batch = Batch::of(texts);
            [&called, &compiled].map(|bert| bert.embed(&vm, &batch).expect("submitted"))
        });
        for (texts, results) in batches.iter().zip(results.collect::<Vec<_>>()) {
            let [called, compiled] = results.map(|result| bits(&result.to_vec::<f32>().expect("embeddings")));
            assert_eq!(called, compiled, "{name}: {texts:?}");
        }
        let more = [&TEXTS[..], &TEXTS[..1]].concat();
        let refused = compiled.embed(&vm, &Batch::of(&more)).expect_err("more texts than it was compiled for");
        assert!(refused.to_string().contains("texts = 5, which may be 1 to 4"), "{refused}");
    }
}

#[test]
fn batches_of_several_threads_do_not_mix_in_the_buffers() {
    let vm = Vm::builder().mode(Mode::Threaded).cpu_threads(2).build().expect("an engine");
    let bert = encoder(&vm, DeviceId::cpu(0), &config(), Placement::Streamed, &mut Drawn::default());
    let embedding = |text| {
        let result = bert.embed(&vm, &Batch::of(&[text])).and_then(|result| result.to_vec::<f32>());
        bits(&result.expect("an embedding"))
    };
    let alone = TEXTS.map(embedding);
    std::thread::scope(|scope| {
        for (text, alone) in TEXTS.into_iter().zip(&alone) {
            scope.spawn(move || (0..50).for_each(|_| assert_eq!(embedding(text), *alone)));
        }
    });
}

#[test]
fn streamed_weights_have_no_race_on_a_device_with_the_worst_legal_order() {
    for seed in 1..=3 {
        let builder = Vm::builder().mode(Mode::Simulated { seed }).sim_devices(1).detect_races(true);
        let vm = builder.build().expect("an engine");
        let device = DeviceId::sim(0);
        let mut drawn = Drawn::default();
        let bert = encoder(&vm, device, &config(), Placement::Streamed, &mut drawn);
        let results = [&TEXTS[..], &TEXTS[1..3]].map(|texts| bert.embed(&vm, &Batch::of(texts)).expect("submitted"));
        let found: Vec<f32> = results.iter().flat_map(|result| result.to_vec::<f32>().expect("embeddings")).collect();
        let texts = TEXTS.iter().chain(&TEXTS[1..3]);
        let expected: Vec<f64> = texts.flat_map(|text| drawn.embedding(text)).collect();
        assert!(difference(&found, &expected) <= 1e-5, "seed {seed}");
        assert!(vm.races().is_empty(), "seed {seed}: {:?}", vm.races());
    }
}

/// The memory of this kind that `device` has handed out.
fn memory(vm: &Vm, device: DeviceId, kind: MemoryKind) -> PoolStats {
    let all = vm.stats().memory;
    all.into_iter().find(|pool| pool.place == Place::Device(device) && pool.kind == kind).expect("memory in use")
}

#[test]
fn two_layers_of_streamed_weights_are_on_the_device() {
    let config = Config { num_hidden_layers: 12, ..config() };
    // The host's device has the vectors of tokens, and another one computes.
    let device = DeviceId::cpu(1);
    let measure = |placement| {
        let vm = Vm::builder().mode(Mode::Inline).cpu_devices(2).build().expect("an engine");
        let mut drawn = Drawn::default();
        let bert = encoder(&vm, device, &config, placement, &mut drawn);
        bert.embed(&vm, &Batch::of(&TEXTS)).and_then(|result| result.to_vec::<f32>()).expect("embeddings");
        let in_layer = drawn.weights.iter().filter(|(name, _)| name.starts_with("encoder.layer.0."));
        let layer = 4 * in_layer.map(|(_, weight)| weight.len()).sum::<usize>();
        let pinned = vm.stats().memory.iter().any(|pool| pool.kind == MemoryKind::Pinned);
        let pinned = if pinned { memory(&vm, device, MemoryKind::Pinned).allocator.in_use } else { 0 };
        (layer, memory(&vm, device, MemoryKind::Device).allocator.peak_in_use, pinned)
    };
    let (layer, resident, pinned) = measure(Placement::Resident);
    assert!(resident >= 12 * layer && pinned == 0, "{resident} bytes for 12 layers of {layer}, {pinned} pinned");
    let (layer, streamed, pinned) = measure(Placement::Streamed);
    assert!(pinned >= 12 * layer, "{pinned} bytes are pinned");
    // Ten layers less, but for what aligns the weights in a buffer.
    assert!(streamed + 9 * layer < resident, "{streamed} bytes, and {resident} with 12 layers of {layer}");
}

#[test]
fn the_next_layer_is_copied_while_one_computes() {
    let layers = 6;
    let config = Config { num_hidden_layers: layers, ..config() };
    let vm = Vm::builder().mode(Mode::Threaded).cpu_threads(2).build().expect("an engine");
    let mut drawn = Drawn::default();
    let bert = encoder(&vm, DeviceId::cpu(0), &config, Placement::Streamed, &mut drawn);
    vm.wait_all().expect("the model");
    // Holds the stream that computes, before the first layer.
    let (open, gate) = std::sync::mpsc::channel::<()>();
    vm.call_fn("gate", DeviceId::cpu(0), [], move |_| {
        let _ = gate.recv();
        Ok(())
    })
    .expect("submitted");
    let result = bert.embed(&vm, &Batch::of(&TEXTS)).expect("submitted");
    // The copies of two layers pass meanwhile; the third waits for the first layer.
    let pending = || {
        let streams = vm.stall_report().streams;
        let copies = streams.into_iter().find(|stalled| stalled.stream.stream_type == StreamType::HostToDevice);
        copies.map_or(0, |stalled| stalled.pending)
    };
    let begin = std::time::Instant::now();
    while pending() != layers as u64 - 2 {
        assert!(begin.elapsed().as_secs() < 60, "{} copies of {layers} layers have not passed", pending());
        std::thread::yield_now();
    }
    open.send(()).expect("the gate waits");
    let expected: Vec<f64> = TEXTS.iter().flat_map(|text| drawn.embedding_by(text, layers)).collect();
    assert!(difference(&result.to_vec::<f32>().expect("embeddings"), &expected) <= 1e-5);
}
