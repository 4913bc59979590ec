use super::*;

fn error(code: u32) -> DriverError {
    DriverError { call: "cuInit", code, name: format!("E{code}"), text: "it says".into() }
}

fn evaluated(version: Result<i32, u32>, count: Result<i32, u32>) -> Result<(CudaVersion, u32), CudaAbsent> {
    evaluate("libx.so".into(), version.map_err(error), || count.map_err(error))
}

#[test]
fn a_driver_with_devices_is_found() {
    let version = CudaVersion { major: 12, minor: 4 };
    assert_eq!(evaluated(Ok(12_040), Ok(3)), Ok((version, 3)));
}

#[test]
fn each_way_not_to_be_there_has_its_own_reason() {
    let version = CudaVersion { major: 13, minor: 0 };
    let stub = CudaAbsent::Stub { library: "libx.so".into() };
    let old = CudaAbsent::TooOld { found: CudaVersion { major: 11, minor: 8 }, needed: NEEDED };
    let cases = [
        (Err(STUB_LIBRARY), Ok(1), stub.clone()),
        (Ok(13_000), Err(STUB_LIBRARY), stub),
        (Ok(11_080), Ok(1), old),
        (Ok(13_000), Err(NO_DEVICE), CudaAbsent::NoDevice { version }),
        (Ok(13_000), Ok(0), CudaAbsent::NoDevice { version }),
        (Ok(13_000), Err(803), CudaAbsent::Init(error(803))),
        (Err(999), Ok(1), CudaAbsent::Init(error(999))),
    ];
    for (version, count, reason) in cases {
        assert_eq!(evaluated(version, count), Err(reason), "version {version:?}, count {count:?}");
    }
}

#[test]
fn an_old_driver_is_not_started() {
    let started = evaluate("libx.so".into(), Ok(11_000), || panic!("the driver was initialised"));
    assert!(matches!(started, Err(CudaAbsent::TooOld { .. })), "{started:?}");
}

#[test]
fn a_missing_library_is_an_error() {
    let Err(CudaAbsent::NoDriver { tried: 2, reason }) = load(&["/no/such/a.so".into(), "/no/such/b.so".into()]) else {
        panic!("a library that is not there was loaded");
    };
    assert_eq!(reason, "libcuda.so.1 was not found");
}

#[test]
fn the_probe_never_panics_and_gives_the_same_result_each_time() {
    let (first, second) = (probe().map(|found| found.devices), probe().map(|found| found.devices));
    assert_eq!(first, second);
    if let Ok(devices) = first {
        assert!(devices > 0);
    }
}
