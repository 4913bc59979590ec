//! Scratch memory of a stream for reductions in two launches: when it is allocated, which lanes have some of their own, when it is freed, and what the driver is asked for beside it.
//! Over a driver that stands in for NVIDIA's.

use std::thread;

use streamvm::ep::builtin_kernels;
use streamvm::ep::cuda::{CudaConfig, CudaDevice, SCRATCH_BYTES};
use streamvm_ep::{
    Access, DType, Device, DeviceKind, Error, GraphOwner, GraphStart, KernelCall, Layout, MemoryKind, Op, Operand,
    Params, Region, Scalar, Shape, Stream,
};
use streamvm_standin::Standin;

use super::devices::{free, graphs, open, standin};
use super::graphs::announced_over;

/// The fewest elements of one sum that is two launches.
const MANY: usize = 1 << 16;
/// So few that their sum is one launch.
const FEW: usize = 64;

/// The input of a sum and its result.
#[derive(Debug)]
struct Summed {
    from: Region,
    to: Region,
}

impl Summed {
    fn new(device: &CudaDevice) -> Result<Summed, Error> {
        let from = device.allocate(MemoryKind::Device, 4 * MANY)?;
        Ok(Summed { from, to: device.allocate(MemoryKind::Device, 4)? })
    }

    /// Both, as announced for a graph.
    fn buffers(&self) -> [Operand<'static>; 2] {
        [view(&self.from, &[MANY], Access::Read), view(&self.to, &[], Access::Write)]
    }

    /// Fills the input, and puts into the place of the result what is no sum.
    fn fill(&self, stream: &mut dyn Stream, value: i32) -> Result<(), Error> {
        stream.fill(&mut view(&self.from, &[MANY], Access::Write), Scalar::from(value))?;
        stream.fill(&mut view(&self.to, &[], Access::Write), Scalar::from(-1i32))
    }

    /// Sums so many elements of the input.
    fn sum(&self, stream: &mut dyn Stream, elements: usize) -> Result<(), Error> {
        let kernel = builtin_kernels().get(Op::Sum, DeviceKind::CUDA, DType::I32)?;
        let mut operands = [view(&self.from, &[elements], Access::Read), view(&self.to, &[], Access::Write)];
        stream.launch(&mut KernelCall::new(kernel, &mut operands, 1, &Params::default()))
    }

    /// The result, after everything on the stream.
    fn result(&self, device: &CudaDevice, stream: &mut dyn Stream) -> Result<i32, Error> {
        let pinned = device.allocate(MemoryKind::Pinned, 4)?;
        stream.copy(&view(&self.to, &[], Access::Read), &mut view(&pinned, &[], Access::Write))?;
        stream.synchronize()?;
        // SAFETY: the copy to it has run, and it is aligned.
        let result = unsafe { pinned.base().cast::<i32>().read() };
        free(device, pinned);
        Ok(result)
    }

    fn free(self, device: &CudaDevice) {
        [self.from, self.to].into_iter().for_each(|region| free(device, region));
    }
}

/// The first elements of a region.
fn view(region: &Region, dims: &[usize], access: Access) -> Operand<'static> {
    let layout = Layout::contiguous(Shape::new(dims).expect("a small shape"));
    assert!(layout.span_elements().end * 4 <= region.bytes());
    // SAFETY: it lies within the region, which is zeroed and freed after a synchronize of the streams that use it.
    unsafe { Operand::new(region.base(), DType::I32, layout, access) }
}

/// The sum of so many equal elements.
fn sum_of(value: i32) -> i32 {
    value * MANY as i32
}

/// A sum on each of two lanes.
fn on_two_lanes(stream: &mut dyn Stream, summed: &[Summed; 2]) -> Result<(), Error> {
    graphs(&mut *stream).begin_lanes(2)?;
    for (lane, summed) in summed.iter().enumerate() {
        graphs(&mut *stream).enter_lane(lane, &[])?;
        summed.sum(stream, MANY)?;
    }
    graphs(&mut *stream).end_lanes()
}

/// Allocations and frees of device memory so far.
fn memory_calls() -> [u64; 2] {
    ["cuMemAlloc_v2", "cuMemFree_v2"].map(Standin::count)
}

/// Loses a device whose driver goes on: a stream of it cannot join its lanes.
fn lose(driver: &Standin, stream: &mut dyn Stream) {
    graphs(&mut *stream).begin_lanes(2).expect("lanes");
    driver.fault("fail=cuCtxPushCurrent_v2:1:INVALID_CONTEXT");
    let ended = graphs(&mut *stream).end_lanes();
    assert!(matches!(&ended, Err(Error::DeviceLost { .. })), "{ended:?}");
}

/// The number of scratch memories that are alive when their context ends. All that the driver has found are leaks of memory.
fn scratch_that_stays(driver: &Standin) -> usize {
    let findings = driver.findings();
    assert!(findings.lines().all(|line| line.starts_with("leak: memory ")), "{findings}");
    findings.lines().filter(|line| line.contains(&format!("({SCRATCH_BYTES} bytes at "))).count()
}

/// A thread that launches leaves freeing to others. The device has room for scratch memory once that is done: for a sum that is queued, and for one that a capture
/// has met.
#[test]
fn memory_whose_free_was_deferred_makes_room_for_scratch_memory() -> Result<(), Error> {
    for is_captured in [false, true] {
        let driver = standin("memory=1M");
        let device = &open(CudaConfig::default())[0];
        let mut stream = device.create_stream()?;
        let summed = Summed::new(device)?;
        summed.fill(&mut *stream, 3)?;
        // The kernel is loaded by a sum of few elements.
        summed.sum(&mut *stream, FEW)?;
        stream.synchronize()?;
        let sequence = GraphOwner::default();
        let (key, buffers) = ((&sequence, 0), summed.buffers());
        announced_over(&mut *stream, key, &buffers, |_| Ok(()))?;
        let room = device.memory_info()?.0 as usize;
        let rest = device.allocate(MemoryKind::Device, room - SCRATCH_BYTES / 2)?;
        let launched = thread::scope(|scope| {
            let launching = scope.spawn(|| -> Result<(), Error> {
                device.bind_thread()?;
                let before = memory_calls();
                free(device, rest);
                assert_eq!(memory_calls(), before, "another thread frees it");
                if is_captured {
                    let done = announced_over(&mut *stream, key, &buffers, |stream| summed.sum(stream, MANY))?;
                    assert_eq!(done, (GraphStart::Capturing, false));
                } else {
                    summed.sum(&mut *stream, MANY)?;
                }
                assert_eq!(memory_calls(), [before[0] + 2, before[1] + 1], "captured: {is_captured}");
                Ok(())
            });
            launching.join().expect("it does not panic")
        });
        launched?;
        assert_eq!(summed.result(device, &mut *stream)?, sum_of(3), "captured: {is_captured}");
        if is_captured {
            // A capture that lacked memory would have been put off.
            let done = announced_over(&mut *stream, key, &buffers, |stream| summed.sum(stream, MANY))?;
            assert_eq!(done, (GraphStart::Capturing, true));
        }
        stream.synchronize()?;
        summed.free(device);
        drop(stream);
        assert_eq!(driver.findings(), "", "captured: {is_captured}");
    }
    Ok(())
}

/// In a capture nothing may be allocated: the driver would report that.
#[test]
fn a_capture_that_meets_the_first_reduction_gives_no_graph_and_the_next_one_does() -> Result<(), Error> {
    use GraphStart::{Capturing, Launched, Queue};
    for is_loaded in [true, false] {
        let driver = standin("delay=20");
        let device = &open(CudaConfig::default())[0];
        let mut stream = device.create_stream()?;
        let summed = Summed::new(device)?;
        summed.fill(&mut *stream, 1)?;
        if is_loaded {
            summed.sum(&mut *stream, FEW)?;
        }
        let [allocated, _] = memory_calls();
        let sequence = GraphOwner::default();
        for (round, expected) in
            (0..).zip([(Queue, false), (Capturing, false), (Capturing, true), (Launched, true), (Launched, true)])
        {
            summed.fill(&mut *stream, round)?;
            let launches = driver.calls("cuLaunchKernel");
            let done = announced_over(&mut *stream, (&sequence, 0), &summed.buffers(), |stream| {
                if round == 0 { Ok(()) } else { summed.sum(stream, MANY) }
            })?;
            assert_eq!(done, expected, "round {round}, loaded: {is_loaded}");
            // One by one, or captured: the first capture leaves the sum out.
            let launches = driver.calls("cuLaunchKernel") - launches;
            assert_eq!(launches, [0, 2, 2, 0, 0][round as usize], "round {round}, loaded: {is_loaded}");
            let expected = if round == 0 { -1 } else { sum_of(round) };
            assert_eq!(summed.result(device, &mut *stream)?, expected, "round {round}, loaded: {is_loaded}");
        }
        assert_eq!(memory_calls()[0], allocated + 1, "loaded: {is_loaded}");
        summed.free(device);
        drop(stream);
        assert_eq!(driver.findings(), "", "loaded: {is_loaded}");
    }
    Ok(())
}

/// Scratch memory of side streams is allocated by sums that are queued, or after a capture that has met them. Then it is used again until the stream is dropped.
#[test]
fn each_lane_that_reduces_allocates_scratch_memory_once() -> Result<(), Error> {
    for is_captured in [false, true] {
        let driver = standin("delay=20");
        let device = &open(CudaConfig::default())[0];
        let mut stream = device.create_stream()?;
        let summed = [Summed::new(device)?, Summed::new(device)?];
        for summed in &summed {
            summed.fill(&mut *stream, 1)?;
            summed.sum(&mut *stream, FEW)?;
        }
        // Side streams are made outside of captures.
        graphs(&mut *stream).begin_lanes(2)?;
        graphs(&mut *stream).end_lanes()?;
        let sequence = GraphOwner::default();
        let buffers: Vec<Operand> = summed.iter().flat_map(Summed::buffers).collect();
        if is_captured {
            announced_over(&mut *stream, (&sequence, 0), &buffers, |_| Ok(()))?;
        }
        let [allocated, freed] = memory_calls();
        for round in 1..=4 {
            for (summed, value) in summed.iter().zip([round, 10 * round]) {
                summed.fill(&mut *stream, value)?;
            }
            let (_, is_launched) =
                announced_over(&mut *stream, (&sequence, 0), &buffers, |stream| on_two_lanes(stream, &summed))?;
            assert_eq!(is_launched, round > 1, "round {round}, captured: {is_captured}");
            for (summed, value) in summed.iter().zip([round, 10 * round]) {
                let what = format!("round {round}, captured: {is_captured}");
                assert_eq!(summed.result(device, &mut *stream)?, sum_of(value), "{what}");
            }
            assert_eq!(memory_calls(), [allocated + 2, freed], "round {round}, captured: {is_captured}");
        }
        drop(stream);
        assert_eq!(memory_calls(), [allocated + 2, freed + 2], "captured: {is_captured}");
        summed.into_iter().for_each(|summed| summed.free(device));
        assert_eq!(driver.findings(), "", "captured: {is_captured}");
    }
    Ok(())
}

/// Nothing shows when the commands of a lost device are over. This driver goes on, so it could free the memory.
#[test]
fn a_lost_device_keeps_scratch_memory() -> Result<(), Error> {
    let driver = standin("delay=20");
    let devices = open(CudaConfig::default());
    let device = &devices[0];
    let mut stream = device.create_stream()?;
    let summed = [Summed::new(device)?, Summed::new(device)?];
    on_two_lanes(&mut *stream, &summed)?;
    stream.synchronize()?;
    let before = memory_calls();
    lose(&driver, &mut *stream);
    let refused = summed[0].sum(&mut *stream, MANY);
    assert!(matches!(refused, Err(Error::DeviceLost { .. })), "{refused:?}");
    summed.into_iter().for_each(|summed| summed.free(device));
    drop((stream, devices));
    assert_eq!(memory_calls(), before);
    assert_eq!(scratch_that_stays(&driver), 2);
    driver.leaks();
    Ok(())
}

/// A thread that launches drops a stream, and leaves freeing to others. Before one of them comes to it, the device is lost.
#[test]
fn scratch_memory_whose_free_was_deferred_stays_when_the_device_is_lost() -> Result<(), Error> {
    let driver = standin("delay=20");
    let devices = open(CudaConfig::default());
    let device = &devices[0];
    let [mut stream, mut other] = [device.create_stream()?, device.create_stream()?];
    let summed = Summed::new(device)?;
    summed.sum(&mut *stream, MANY)?;
    let before = memory_calls();
    thread::scope(|scope| {
        scope.spawn(|| {
            device.bind_thread().expect("it is bound");
            drop(stream);
        });
    });
    lose(&driver, &mut *other);
    // This thread would free what was deferred, too, if the device were not lost.
    summed.free(device);
    drop((other, devices));
    assert_eq!(memory_calls(), before);
    assert_eq!(scratch_that_stays(&driver), 1);
    driver.leaks();
    Ok(())
}

/// Each launch takes long, so a time of one of them alone would be too short.
#[test]
fn a_reduction_in_two_launches_has_one_time_that_spans_both() -> Result<(), Error> {
    const SLOW: u64 = 30;
    let driver = standin("");
    let device = &open(CudaConfig { timed: true, ..CudaConfig::default() })[0];
    let mut stream = device.create_stream()?;
    let summed = Summed::new(device)?;
    for seq in 1..=2 {
        stream.number(0, seq);
        driver.fault(&format!("slow=1:{SLOW};slow=2:{SLOW}"));
        let launches = driver.calls("cuLaunchKernel");
        summed.sum(&mut *stream, MANY)?;
        assert_eq!(driver.calls("cuLaunchKernel") - launches, 2);
    }
    stream.synchronize()?;
    let times = device.take_times();
    assert_eq!(times.iter().map(|time| time.seq).collect::<Vec<_>>(), [1, 2]);
    assert!(times.iter().all(|time| time.end - time.start >= 2 * SLOW * 1_000_000), "{times:?}");
    summed.free(device);
    drop(stream);
    assert_eq!(driver.findings(), "");
    Ok(())
}
