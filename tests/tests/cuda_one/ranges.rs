//! Launches are in ranges of NVTX when a tool wants to see these. A process looks for the library once, so this is one of its own.

use streamvm::{DType, DeviceId, Error, Vm};
use streamvm_standin::Standin;
use streamvm_tests::{PATIENCE, run_alone};

const CUDA: DeviceId = DeviceId::cuda(0);

/// Copies and kernels.
fn program() -> Result<Standin, Error> {
    let driver = Standin::load("devices=1");
    let vm = Vm::builder().build()?;
    let x = vm.from_slice(&[1.0f32, 2.0], &[2])?.to(CUDA)?;
    let doubled = (&x + &x)?;
    let product = (&doubled * &vm.full(CUDA, DType::F32, &[2], 3.0)?)?;
    assert_eq!(product.to_vec::<f32>()?, [6.0, 12.0]);
    Ok(driver)
}

/// A folder where the loader finds the stand-in as the library of NVTX, before those that it has.
fn with_library() -> String {
    let folder = Standin::folder().join("nvtx");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (link, target) = (folder.join("libnvtx3interop.so.1"), Standin::folder().join("libcuda.so"));
    if std::os::unix::fs::symlink(target, &link).is_err() {
        assert!(link.exists(), "{} is a link from before", link.display());
    }
    let others = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    format!("{}:{others}", folder.display())
}

/// The library is loaded when a tool says that it is there, and not without it.
#[test]
fn a_tool_that_starts_the_program_sees_ranges() {
    let folders = with_library();
    let (there, tool) = (("LD_LIBRARY_PATH", folders.as_str()), ("NVTX_INJECTION64_PATH", "/x"));
    assert_eq!(run_alone("ranges::with_ranges", &[there, tool], PATIENCE), Ok(()));
    assert_eq!(run_alone("ranges::without_ranges", &[there], PATIENCE), Ok(()));
}

#[test]
fn a_tool_sees_the_op_of_each_launch() {
    let library = Standin::folder().join("libcuda.so");
    let named = [("STREAMVM_NVTX", library.to_str().expect("a path"))];
    assert_eq!(run_alone("ranges::with_ranges", &named, PATIENCE), Ok(()));
}

/// A tool without a library of NVTX, and a file that is none: the log says so, and all goes on.
#[test]
fn without_the_library_all_goes_on() {
    for (name, value) in [
        ("STREAMVM_NVTX", "/nowhere/libnvtx.so"),
        ("STREAMVM_NVTX", "/proc/self/status"),
        ("NVTX_INJECTION64_PATH", "/x"),
    ] {
        assert_eq!(run_alone("ranges::without_ranges", &[(name, value)], PATIENCE), Ok(()), "{name}={value}");
    }
}

#[test]
#[ignore = "another test runs it in a process of its own"]
fn with_ranges() -> Result<(), Error> {
    let driver = program()?;
    let calls = |op: &str| ["cuLaunchKernel", "cuMemcpyAsync"].map(|call| driver.calls(&format!("{call} in {op}")));
    assert_eq!((calls("add"), calls("mul")), ([1, 0], [1, 0]));
    assert_eq!(calls("copy"), [0, 2]);
    let all = ["add", "mul", "fill", "copy"].map(|op| calls(op)[0]).into_iter().sum::<u64>();
    assert_eq!(driver.calls("cuLaunchKernel"), all, "each launch is in a range");
    assert_eq!(driver.findings(), "");
    Ok(())
}

#[test]
#[ignore = "another test runs it in a process of its own"]
fn without_ranges() -> Result<(), Error> {
    let driver = program()?;
    assert_eq!((driver.calls("cuLaunchKernel in add"), driver.calls("cuLaunchKernel") > 0), (0, true));
    Ok(())
}
