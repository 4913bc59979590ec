//! What a driver's errors become: refusals, devices that are lost, failures of kernels that nobody waits for.

#![cfg(target_os = "linux")]

use streamvm::ep::cuda::CudaConfig;
use streamvm_ep::{Device, DeviceId, Error, Label, LateCause, MemoryKind};

use streamvm_tests::until;

use super::devices::{divide, fill, free, memory, open, record, standin};

#[test]
fn no_memory_is_out_of_memory_and_any_other_refusal_is_the_drivers() {
    let driver = standin("memory=64M");
    let device = &open(CudaConfig::default())[0];
    let (free_bytes, total) = device.memory_info().expect("the device tells");
    assert!(free_bytes <= total && total == 64 << 20, "{free_bytes} of {total}");
    let error = device.allocate(MemoryKind::Device, 1 << 30).map(drop).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { requested: 1_073_741_824, limit: None, .. }), "{error}");
    driver.fault("fail=cuMemAlloc_v2:1:INVALID_VALUE");
    let error = device.allocate(MemoryKind::Device, 100).map(drop).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::Driver { .. })
            && text.contains("cuda:0: cuMemAlloc_v2 gave CUDA_ERROR_INVALID_VALUE (1)")
    );
    assert_eq!(device.memory(MemoryKind::Device).in_use, 0, "what was refused is not counted");
    // Of what no address space holds a driver may say anything: it is not asked.
    for (kind, call) in [(MemoryKind::Device, "cuMemAlloc_v2"), (MemoryKind::Pinned, "cuMemHostAlloc")] {
        let before = driver.calls(call);
        let error = device.allocate(kind, isize::MAX as usize - 4096).map(drop).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert_eq!(driver.calls(call), before, "{call}");
    }
    let region = memory(device);
    free(device, region);
}

/// `INVALID_VALUE` of one call leaves the device as it was.
#[test]
fn a_refused_command_is_not_queued_and_the_stream_goes_on() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream().expect("a stream");
    let region = memory(device);
    driver.fault("fail=cuLaunchKernel:1:INVALID_VALUE");
    let error = fill(&mut *stream, &region, 1).unwrap_err();
    assert!(matches!(error, Error::Driver { .. }), "{error}");
    fill(&mut *stream, &region, 2).expect("the next one");
    stream.synchronize().expect("it is over");
    free(device, region);
}

#[test]
fn an_illegal_access_loses_its_device_alone_and_names_what_was_under_way() {
    let driver = standin("illegal=3@0");
    let devices = open(CudaConfig::default());
    let mut bad = devices[0].create_stream().expect("a stream");
    let mut good = devices[1].create_stream().expect("a stream");
    let regions = [0, 1].map(|device: usize| memory(&devices[device]));
    for seq in 1..=2 {
        bad.number(7, seq);
        fill(&mut *bad, &regions[0], 1).expect("a fill");
    }
    let seen = record(&devices[0], &mut *bad);
    assert_eq!(devices[0].wait(seen, None), Ok(true));
    for seq in 3..=5 {
        bad.number(7, seq);
        // The driver may notice while more is given.
        let _ = fill(&mut *bad, &regions[0], 1);
    }
    let error = bad.synchronize().unwrap_err();
    let Error::DeviceLost { device, reason } = &error else { panic!("{error}") };
    assert_eq!(*device, DeviceId::cuda(0));
    assert!(reason.contains("ILLEGAL_ADDRESS (700)"), "{reason}");
    let range = |last: u64| {
        format!("by stream and number: 7:3{}", if last > 3 { format!(" to 7:{last};") } else { ";".into() })
    };
    assert!((3..=5).any(|last| reason.contains(&range(last))), "{reason}");
    // From now on without a call of the driver.
    let before = driver.calls("cuLaunchKernel");
    assert_eq!(fill(&mut *bad, &regions[0], 1), Err(error.clone()));
    assert_eq!(devices[0].query(seen), Err(error.clone()));
    assert_eq!(devices[0].allocate(MemoryKind::Device, 8).map(drop), Err(error.clone()));
    assert_eq!(good.wait(seen), Err(error), "what a lost device has recorded never passes");
    assert_eq!(driver.calls("cuLaunchKernel"), before);
    fill(&mut *good, &regions[1], 2).expect("the other device goes on");
    good.synchronize().expect("it is over");
    for (device, region) in devices.iter().zip(regions) {
        free(device, region);
    }
    drop((bad, good));
    drop(devices);
    driver.leaks();
}

#[test]
fn a_wait_for_a_device_that_is_lost_without_notice_loses_no_other() {
    let driver = standin("illegal=2@0");
    let devices = open(CudaConfig::default());
    let [mut bad, mut good] = [0, 1].map(|device: usize| devices[device].create_stream().expect("a stream"));
    let regions = [0, 1].map(|device: usize| memory(&devices[device]));
    fill(&mut *bad, &regions[0], 1).expect("a fill");
    let seen = record(&devices[0], &mut *bad);
    fill(&mut *bad, &regions[0], 1).expect("it is launched");
    // Only the waits of the other device ask the driver.
    let mut refused = None;
    until("the kernel runs", || {
        refused = good.wait(seen).err();
        refused.is_some()
    });
    let lost =
        |error: &Option<Error>| matches!(error, Some(Error::DeviceLost { device, .. }) if *device == DeviceId::cuda(0));
    assert!(lost(&refused), "{refused:?}");
    assert!(lost(&devices[0].query(seen).err()), "the device knows it now");
    fill(&mut *good, &regions[1], 2).expect("the other device goes on");
    good.synchronize().expect("it is over");
    for (device, region) in devices.iter().zip(regions) {
        free(device, region);
    }
    drop((bad, good));
    drop(devices);
    driver.leaks();
}

#[test]
fn a_device_that_fails_to_wait_for_another_is_lost_itself() {
    let driver = standin("");
    let devices = open(CudaConfig::default());
    let [mut waited_for, mut waits] = [0, 1].map(|device: usize| devices[device].create_stream().expect("a stream"));
    let event = record(&devices[0], &mut *waited_for);
    driver.fault("fail=cuStreamWaitEvent:1:LAUNCH_FAILED");
    let error = waits.wait(event).unwrap_err();
    assert!(matches!(error, Error::DeviceLost { device, .. } if device == DeviceId::cuda(1)), "{error}");
    assert_eq!(devices[0].wait(event, None), Ok(true), "the other device goes on");
}

#[test]
fn synchronizing_each_op_names_the_instruction() {
    let driver = standin("illegal=2");
    let devices = open(CudaConfig { sync_each_op: true, ..CudaConfig::default() });
    let mut stream = devices[0].create_stream().expect("a stream");
    let region = memory(&devices[0]);
    stream.begin(&Label::new(4, 1, "first"));
    fill(&mut *stream, &region, 1).expect("the first");
    stream.begin(&Label::new(4, 2, "second"));
    let error = fill(&mut *stream, &region, 1).unwrap_err().to_string();
    assert!(error.contains("in second (fill), instruction 4:2, issued at tests/tests/cuda/failures.rs"), "{error}");
    free(&devices[0], region);
    drop(stream);
    drop(devices);
    driver.leaks();
}

#[test]
fn failures_of_a_lost_device_are_not_invented() {
    let driver = standin("illegal=1");
    let devices = open(CudaConfig::default());
    let mut stream = devices[0].create_stream().expect("a stream");
    let regions = [(); 3].map(|()| memory(&devices[0]));
    let [a, b, out] = &regions;
    let _ = divide(&mut *stream, a, b, out);
    assert!(matches!(stream.synchronize(), Err(Error::DeviceLost { .. })));
    assert_eq!(devices[0].take_failures(), []);
    regions.into_iter().for_each(|region| free(&devices[0], region));
    drop(stream);
    drop(devices);
    driver.leaks();
}

/// The event after a kernel that may fail cannot be recorded: the kernel is waited for, and still told.
#[test]
fn a_failure_is_told_where_its_event_is_not_recorded() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream().expect("a stream");
    let regions = [(); 3].map(|()| memory(device));
    let [a, b, out] = &regions;
    stream.number(3, 9);
    driver.fault("fail=cuEventRecord:1:OPERATING_SYSTEM");
    divide(&mut *stream, a, b, out).expect("it was launched");
    let failures = device.take_failures();
    assert_eq!(failures.iter().map(|failure| (failure.stream, failure.seq)).collect::<Vec<_>>(), [(3, 9)]);
    assert!(matches!(failures[0].cause, LateCause::Device(Error::Kernel(_))), "{:?}", failures[0]);
    regions.into_iter().for_each(|region| free(device, region));
}

/// A loop of divisions with nobody looking leaves many under way: only the oldest of each stream is asked for.
#[test]
fn of_kernels_under_way_only_the_oldest_of_a_stream_is_asked_for() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut streams = [(); 3].map(|()| device.create_stream().expect("a stream"));
    let regions = [(); 5].map(|()| memory(device));
    let [a, b, outs @ ..] = &regions;
    let held = driver.hold();
    let launches = 50;
    for seq in 1..=launches {
        for (id, (stream, out)) in (0..).zip(streams.iter_mut().zip(outs)) {
            stream.number(id, seq);
            divide(&mut **stream, a, b, out).expect("a launch");
        }
    }
    let asked = || driver.calls("cuEventQuery");
    let before = asked();
    assert_eq!(device.take_failures(), []);
    assert_eq!(asked() - before, 3, "one for each stream");
    drop(held);
    for stream in &mut streams {
        stream.synchronize().expect("it is over");
    }
    let mut failures: Vec<_> = device.take_failures().iter().map(|failure| (failure.stream, failure.seq)).collect();
    failures.sort_unstable();
    assert_eq!(failures, (0..3).flat_map(|id| (1..=launches).map(move |seq| (id, seq))).collect::<Vec<_>>());
    assert_eq!(asked() - before, 3 + 3 * launches, "and each launch once");
    assert_eq!(device.take_failures(), []);
    regions.into_iter().for_each(|region| free(device, region));
}

/// What is over on one stream is told though another stream, which was given its kernel before, still runs.
#[test]
fn a_stream_that_takes_long_holds_up_no_failure_of_another() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut streams = [(); 2].map(|()| device.create_stream().expect("a stream"));
    let regions = [(); 4].map(|()| memory(device));
    let [a, b, outs @ ..] = &regions;
    driver.fault("slow=1:2000");
    let [slow, quick] = &mut streams;
    // They have the same number, as nobody has given them one.
    divide(&mut **slow, a, b, &outs[0]).expect("a launch");
    divide(&mut **quick, a, b, &outs[1]).expect("a launch");
    quick.synchronize().expect("it is over");
    assert_eq!(device.take_failures().len(), 1);
    // A stream that is gone is still looked at.
    let event = record(device, &mut **slow);
    drop(streams);
    assert_eq!(device.wait(event, None), Ok(true));
    assert_eq!(device.take_failures().len(), 1);
    regions.into_iter().for_each(|region| free(device, region));
}

/// What cannot be asked cannot be told: an outcome that hangs on it would be taken for fine.
#[test]
fn a_device_that_cannot_tell_which_kernels_have_failed_is_lost() {
    let driver = standin("");
    let devices = open(CudaConfig::default());
    let device = &devices[0];
    let mut stream = device.create_stream().expect("a stream");
    let regions = [(); 3].map(|()| memory(device));
    let [a, b, out] = &regions;
    divide(&mut *stream, a, b, out).expect("a launch");
    stream.synchronize().expect("it is over");
    // By itself this code ends no device.
    driver.fault("fail=cuEventQuery:1:UNKNOWN");
    assert_eq!(device.take_failures(), []);
    let error = stream.synchronize().unwrap_err();
    let Error::DeviceLost { reason, .. } = &error else { panic!("{error}") };
    assert!(
        reason.contains("cannot be told which kernels have failed: ") && reason.contains("cuEventQuery"),
        "{reason}"
    );
    assert_eq!(device.allocate(MemoryKind::Device, 8).map(drop), Err(error));
    regions.into_iter().for_each(|region| free(device, region));
    drop((stream, devices));
    // Nothing is given back on it, and this driver's is not broken.
    let findings = driver.findings();
    assert!(findings.lines().all(|line| line.starts_with("leak: memory ")), "{findings}");
}
