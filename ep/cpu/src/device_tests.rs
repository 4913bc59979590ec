use streamvm_ep::MemoryStats;

use super::*;

fn device(memory_limit: Option<u64>) -> CpuDevice {
    CpuDevice::new(0, CpuConfig { memory_limit, ..CpuConfig::default() })
}

fn free(device: &CpuDevice, region: Region) {
    // SAFETY: every region here came from the device, and nothing uses it.
    unsafe { device.free(region) }
}

#[test]
fn regions_are_aligned_zeroed_and_counted() {
    let device = device(None);
    let region = device.allocate(MemoryKind::Device, 100).unwrap();
    assert_eq!(region.base().addr() % device.alignment(), 0);
    assert_eq!((region.bytes(), region.kind(), region.device()), (100, MemoryKind::Device, device.id()));
    // SAFETY: the region has 100 bytes, and nothing writes them meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(region.base(), 100) };
    assert_eq!(bytes, [0; 100]);
    let expected = MemoryStats { in_use: 100, peak: 100, limit: None, regions: 1, allocations: 1 };
    assert_eq!(device.memory(MemoryKind::Device), expected);
    assert_eq!(device.memory(MemoryKind::Pinned), MemoryStats::default());
    free(&device, region);
    let expected = MemoryStats { in_use: 0, regions: 0, ..expected };
    assert_eq!(device.memory(MemoryKind::Device), expected);
}

#[test]
fn the_limit_is_over_all_kinds() {
    let device = device(Some(100));
    let pinned = device.allocate(MemoryKind::Pinned, 60).unwrap();
    let refused = device.allocate(MemoryKind::Device, 41).unwrap_err();
    assert_eq!(
        refused,
        Error::OutOfMemory {
            device: device.id(),
            kind: MemoryKind::Device,
            requested: 41,
            in_use: 60,
            limit: Some(100),
        }
    );
    assert!(refused.to_string().contains("at most 100"), "{refused}");
    let fits = device.allocate(MemoryKind::Device, 40).unwrap();
    free(&device, pinned);
    free(&device, fits);
    free(&device, device.allocate(MemoryKind::Pageable, 100).unwrap());
    let left: u64 = MemoryKind::ALL.map(|kind| device.memory(kind).in_use).iter().sum();
    assert_eq!(left, 0);
}

#[test]
fn what_the_machine_cannot_give_is_an_error_and_not_counted() {
    let device = device(None);
    for bytes in [usize::MAX, isize::MAX as usize - 4096] {
        let refused = device.allocate(MemoryKind::Device, bytes).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory { limit: None, .. }), "{refused}");
    }
    let counts = device.memory(MemoryKind::Device);
    assert_eq!((counts.in_use, counts.regions, counts.allocations), (0, 0, 0));
}

#[test]
fn zero_bytes_take_no_memory_but_have_an_aligned_address() {
    let device = device(Some(0));
    let region = device.allocate(MemoryKind::Device, 0).unwrap();
    assert_eq!(region.base().addr() % device.alignment(), 0);
    assert_eq!(device.memory(MemoryKind::Device).regions, 1);
    free(&device, region);
    assert_eq!(device.memory(MemoryKind::Device).regions, 0);
}

#[test]
fn threads_never_pass_the_limit_together() {
    let device = device(Some(1000));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    if let Ok(region) = device.allocate(MemoryKind::Device, 400) {
                        assert!(device.memory(MemoryKind::Device).in_use <= 1000);
                        free(&device, region);
                    }
                }
            });
        }
    });
    let counts = device.memory(MemoryKind::Device);
    assert_eq!((counts.in_use, counts.regions), (0, 0));
    assert!(counts.peak <= 800);
}

#[test]
fn the_device_tells_about_itself() {
    let device = CpuDevice::new(2, CpuConfig { memory_limit: Some(7), ..CpuConfig::default() });
    let info = device.info();
    assert_eq!((info.id, info.memory_limit), (DeviceId::cpu(2), Some(7)));
    assert!(info.units >= 1);
}
