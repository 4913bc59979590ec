//! Graphs of one stream: what it captures, which memory a graph may access, and when graphs go.

use streamvm::ep::cuda::CudaConfig;
use streamvm_ep::{
    Access, BlockStart, DType, Device, Error, GraphBlocks, GraphKey, GraphOwner, GraphStart, Layout, MemoryKind,
    Operand, Region, Scalar, Shape, Stream,
};

use super::devices::{divide, fill, free, graphs, memory, negate, open, record, standin, vector};

/// Announces commands over `buffers` and queues them, as a sequence does. Returns what the stream did about the announcement, and whether
/// a graph was launched.
fn announced(
    stream: &mut dyn Stream,
    key: (&GraphOwner, usize),
    buffers: &[&Region],
    commands: impl Fn(&mut dyn Stream) -> Result<(), Error>,
) -> Result<(GraphStart, bool), Error> {
    let buffers: Vec<Operand> = buffers.iter().map(|region| vector(region, Access::Write)).collect();
    announced_over(stream, key, &buffers, commands)
}

/// As [`announced`], over these views.
pub(super) fn announced_over(
    stream: &mut dyn Stream,
    (owner, first): (&GraphOwner, usize),
    buffers: &[Operand<'static>],
    commands: impl Fn(&mut dyn Stream) -> Result<(), Error>,
) -> Result<(GraphStart, bool), Error> {
    let start = graphs(&mut *stream).begin_graph(GraphKey { owner, first }, buffers)?;
    let launched = match start {
        GraphStart::Launched => return Ok((start, true)),
        GraphStart::Capturing => {
            let whole = commands(stream).is_ok();
            graphs(&mut *stream).end_graph(whole)?
        }
        GraphStart::Queue => false,
    };
    if !launched {
        commands(stream)?;
    }
    Ok((start, launched))
}

use GraphStart::{Capturing, Launched, Queue};

#[test]
fn commands_are_captured_when_their_buffers_come_again() -> Result<(), Error> {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    let regions = [memory(device), memory(device)];
    let owner = GraphOwner::default();
    let mut run = |first: usize, region: &Region| {
        announced(&mut *stream, (&owner, first), &[region], |stream| {
            fill(stream, region, 1)?;
            fill(stream, region, 2)
        })
    };
    let [a, b] = &regions;
    for (first, region, expected) in [
        (0, a, (Queue, false)),
        (0, b, (Queue, false)),
        (0, a, (Capturing, true)),
        (5, a, (Queue, false)),
        (0, a, (Launched, true)),
        (0, b, (Capturing, true)),
        (5, a, (Capturing, true)),
        (0, b, (Launched, true)),
    ] {
        assert_eq!(run(first, region)?, expected);
    }
    stream.synchronize()?;
    regions.into_iter().for_each(|region| free(device, region));
    drop(stream);
    assert_eq!(driver.calls("cuGraphExecDestroy"), 3);
    Ok(())
}

/// A graph is launched without asking for its operands again. So it may access nothing but the announced buffers, whose makers
/// guarantee their memory at each announcement.
#[test]
fn a_graph_accesses_the_announced_buffers_only() -> Result<(), Error> {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    let (inside, outside) = (memory(device), memory(device));
    let owner = GraphOwner::default();
    for round in 0..4 {
        let done = announced(&mut *stream, (&owner, 0), &[&inside], |stream| {
            fill(stream, &inside, 1)?;
            fill(stream, &outside, 2)
        })?;
        assert_eq!(done, (if round == 1 { Capturing } else { Queue }, false), "round {round}");
    }
    // The same, where a buffer was announced as read.
    let read = [vector(&inside, Access::Read)];
    let other = GraphOwner::default();
    let key = GraphKey { owner: &other, first: 0 };
    assert_eq!(graphs(&mut *stream).begin_graph(key, &read)?, Queue);
    assert_eq!(graphs(&mut *stream).begin_graph(key, &read)?, Capturing);
    fill(&mut *stream, &inside, 3)?;
    assert!(!graphs(&mut *stream).end_graph(true)?, "a write of a buffer that was announced as read");
    // A buffer announced as written is another one.
    assert_eq!(graphs(&mut *stream).begin_graph(key, &[vector(&inside, Access::Write)])?, Queue);
    stream.synchronize()?;
    assert_eq!(driver.calls("cuGraphLaunch"), 0);
    [inside, outside].into_iter().for_each(|region| free(device, region));
    Ok(())
}

/// The failures of such a kernel are read for each launch, so it is queued by itself, with the others.
#[test]
fn kernels_that_may_fail_are_not_captured() -> Result<(), Error> {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    let [a, b, out] = [(); 3].map(|()| memory(device));
    let owner = GraphOwner::default();
    for round in 1..=3 {
        stream.number(3, round);
        announced(&mut *stream, (&owner, 0), &[&a, &b, &out], |stream| {
            fill(stream, &a, 1)?;
            divide(stream, &a, &b, &out)
        })?;
    }
    stream.synchronize()?;
    let failed: Vec<u64> = device.take_failures().into_iter().map(|failure| failure.seq).collect();
    assert_eq!((failed, driver.calls("cuGraphLaunch")), (vec![1, 2, 3], 0));
    [a, b, out].into_iter().for_each(|region| free(device, region));
    Ok(())
}

/// A capture that has missed a kernel for which there is no memory is tried again later.
#[test]
fn a_kernel_without_memory_puts_a_capture_off_further() -> Result<(), Error> {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    let [a, out] = [(); 2].map(|()| memory(device));
    let owner = GraphOwner::default();
    for (round, expected) in [
        (0, (Queue, false)),
        (1, (Capturing, false)),
        (2, (Queue, false)),
        (3, (Capturing, true)),
        (4, (Launched, true)),
    ] {
        if round == 1 {
            // The load after the capture. That of the launch after it has memory.
            driver.fault("fail=cuModuleLoadDataEx:1:OUT_OF_MEMORY");
        }
        let done = announced(&mut *stream, (&owner, 0), &[&a, &out], |stream| {
            fill(stream, &a, 1)?;
            if round == 0 { Ok(()) } else { negate(stream, &a, &out) }
        })?;
        assert_eq!(done, expected, "round {round}");
    }
    stream.synchronize()?;
    assert_eq!((driver.calls("cuStreamBeginCapture_v2"), driver.findings()), (2, String::new()));
    [a, out].into_iter().for_each(|region| free(device, region));
    Ok(())
}

/// What a driver makes of a body without commands is not documented. So a capture gives no graph if no command of a body has elements.
#[test]
fn a_block_whose_commands_have_no_elements_is_not_captured() -> Result<(), Error> {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    let [a, flag] = [(); 2].map(|()| memory(device));
    let part = |region: &Region, dtype: DType, dims: &[usize], access: Access| {
        let layout = Layout::contiguous(Shape::new(dims).expect("a small shape"));
        // SAFETY: it lies within the region, which is zeroed, and freed after a synchronize of the stream that uses it.
        unsafe { Operand::new(region.base(), dtype, layout, access) }
    };
    let buffers = [vector(&a, Access::Write), vector(&flag, Access::Write)];
    let condition = part(&flag, DType::Bool, &[], Access::Read);
    // The elements that each body of an `if` in a loop fills.
    let cases: [&[usize]; 5] = [&[1], &[0], &[1, 1], &[0, 1], &[1, 0]];
    for bodies in cases {
        let owner = GraphOwner::default();
        let (key, blocks) = (GraphKey { owner: &owner, first: 0 }, GraphBlocks { depth: 2, rounds: Some(0) });
        assert_eq!(graphs(&mut *stream).begin_block_graph(key, &buffers, blocks)?, Queue);
        assert_eq!(graphs(&mut *stream).begin_block_graph(key, &buffers, blocks)?, Capturing);
        graphs(&mut *stream).begin_block(BlockStart::While { most_rounds: 9, step: 0 }, &condition)?;
        graphs(&mut *stream).begin_block(BlockStart::If { has_else: bodies.len() > 1 }, &condition)?;
        for (body, &elements) in bodies.iter().enumerate() {
            if body > 0 {
                graphs(&mut *stream).begin_else()?;
            }
            stream.fill(&mut part(&a, DType::I32, &[elements], Access::Write), Scalar::from(1i32))?;
        }
        graphs(&mut *stream).end_block()?;
        fill(&mut *stream, &a, 1)?;
        graphs(&mut *stream).end_block()?;
        assert_eq!(graphs(&mut *stream).end_graph(true)?, !bodies.contains(&0), "{bodies:?}");
        stream.synchronize()?;
    }
    assert_eq!((driver.calls("cuGraphLaunch"), driver.findings()), (2, String::new()));
    [a, flag].into_iter().for_each(|region| free(device, region));
    Ok(())
}

/// The driver may load nothing within a capture. So a kernel that nothing has launched before is loaded after it, and the next run captures again.
#[test]
fn a_kernel_that_is_not_loaded_puts_a_capture_off() -> Result<(), Error> {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    let [a, out] = [(); 2].map(|()| memory(device));
    let owner = GraphOwner::default();
    for (round, expected) in
        [(0, (Queue, false)), (1, (Capturing, false)), (2, (Capturing, true)), (3, (Launched, true))]
    {
        let done = announced(&mut *stream, (&owner, 0), &[&a, &out], |stream| {
            fill(stream, &a, 1)?;
            if round == 0 { Ok(()) } else { negate(stream, &a, &out) }
        })?;
        assert_eq!(done, expected, "round {round}");
    }
    stream.synchronize()?;
    let calls = ["cuModuleLoadDataEx", "cuStreamBeginCapture_v2", "cuGraphLaunch"].map(|name| driver.calls(name));
    assert_eq!((calls, driver.findings()), ([2, 2, 2], String::new()));
    [a, out].into_iter().for_each(|region| free(device, region));
    Ok(())
}

#[test]
fn graphs_of_dropped_sequences_are_destroyed() -> Result<(), Error> {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    let region = memory(device);
    for _ in 0..5 {
        let owner = GraphOwner::default();
        for _ in 0..3 {
            announced(&mut *stream, (&owner, 0), &[&region], |stream| fill(stream, &region, 1))?;
        }
    }
    let alive = driver.calls("cuGraphInstantiateWithFlags") - driver.calls("cuGraphExecDestroy");
    assert_eq!(alive, 1, "that of the last sequence");
    stream.synchronize()?;
    free(device, region);
    Ok(())
}

/// A stream that could not be taken out of its capture would swallow commands.
#[test]
fn a_stream_that_captures_for_ever_loses_its_device() -> Result<(), Error> {
    let driver = standin("");
    let devices = open(CudaConfig::default());
    let device = &devices[0];
    let mut stream = device.create_stream()?;
    let region = memory(device);
    let owner = GraphOwner::default();
    let run = |stream: &mut dyn Stream| announced(stream, (&owner, 0), &[&region], |stream| fill(stream, &region, 1));
    run(&mut *stream)?;
    driver.fault("fail=cuStreamEndCapture:*:INVALID_VALUE");
    let error = run(&mut *stream).unwrap_err();
    assert!(matches!(&error, Error::DeviceLost { reason, .. } if reason.contains("cuStreamEndCapture")), "{error}");
    assert_eq!(run(&mut *stream).unwrap_err(), error);
    // It is destroyed while it captures.
    drop(stream);
    assert!(driver.findings().contains("cuStreamDestroy_v2 of stream 2 of cuda:0, which captures"));
    free(device, region);
    // A lost device frees nothing.
    drop(devices);
    assert!(driver.findings().lines().all(|finding| finding.starts_with("leak: memory")));
    Ok(())
}

/// A caller that panics leaves its capture open.
#[test]
fn a_capture_that_was_left_open_does_not_keep_later_commands_from_running() -> Result<(), Error> {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    let region = memory(device);
    for next in 0..4 {
        let owner = GraphOwner::default();
        let key = GraphKey { owner: &owner, first: 0 };
        let buffers = [vector(&region, Access::Write)];
        assert_eq!(graphs(&mut *stream).begin_graph(key, &buffers)?, Queue);
        assert_eq!(graphs(&mut *stream).begin_graph(key, &buffers)?, Capturing);
        fill(&mut *stream, &region, 1)?;
        match next {
            0 => stream.number(0, 1),
            1 => stream.synchronize()?,
            2 => assert_eq!(graphs(&mut *stream).begin_graph(key, &buffers)?, Queue),
            _ => {}
        }
        // The record is after the fill, and both run.
        if next < 3 {
            fill(&mut *stream, &region, 2)?;
        }
        let passed = record(device, &mut *stream);
        assert_eq!(device.wait(passed, None), Ok(true));
        device.events().release(passed)?;
    }
    assert_eq!((driver.calls("cuGraphLaunch"), driver.calls("cuLaunchKernel")), (0, 4 + 3));
    let owner = GraphOwner::default();
    let (key, buffers) = (GraphKey { owner: &owner, first: 0 }, [vector(&region, Access::Write)]);
    assert_eq!(graphs(&mut *stream).begin_graph(key, &buffers)?, Queue);
    assert_eq!(graphs(&mut *stream).begin_graph(key, &buffers)?, Capturing);
    drop(stream);
    free(device, region);
    Ok(())
}

#[test]
fn nothing_is_captured_that_each_call_waits_for_or_that_kernels_reach_elsewhere() -> Result<(), Error> {
    let driver = standin("combined=1");
    for (config, kind) in [
        (CudaConfig { sync_each_op: true, ..CudaConfig::default() }, MemoryKind::Device),
        (CudaConfig::default(), MemoryKind::Upload),
    ] {
        let device = &open(config)[0];
        let mut stream = device.create_stream()?;
        let region = device.allocate(kind, 256)?;
        let owner = GraphOwner::default();
        for _ in 0..4 {
            let done = announced(&mut *stream, (&owner, 0), &[&region], |stream| fill(stream, &region, 1))?;
            assert_eq!(done, (Queue, false));
        }
        stream.synchronize()?;
        free(device, region);
    }
    assert_eq!(driver.calls("cuStreamBeginCapture_v2"), 0);
    Ok(())
}

/// The time of an instruction spans its graph; the capture has none.
#[test]
fn a_launch_of_a_graph_has_one_time() -> Result<(), Error> {
    let _driver = standin("");
    let device = &open(CudaConfig { timed: true, ..CudaConfig::default() })[0];
    let mut stream = device.create_stream()?;
    let region = memory(device);
    let owner = GraphOwner::default();
    for seq in 1..=3 {
        stream.number(0, seq);
        announced(&mut *stream, (&owner, 0), &[&region], |stream| {
            fill(stream, &region, 1)?;
            fill(stream, &region, 2)
        })?;
    }
    stream.synchronize()?;
    let times: Vec<u64> = device.take_times().into_iter().map(|time| time.seq).collect();
    assert_eq!(times, [1, 1, 2, 3]);
    free(device, region);
    Ok(())
}
