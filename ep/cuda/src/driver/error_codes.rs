//! Codes of the CUDA driver that are handled specially, and those that end a device.

/// Out of memory.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// The library is the toolkit's stub.
pub(crate) const STUB_LIBRARY: u32 = 34;
/// There is no device.
pub(crate) const NO_DEVICE: u32 = 100;
/// Peer access is on already.
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;

/// Whether a device is unusable after this code. After these codes the driver answers every call on the context with the same code, or
/// has shut down. The documentation of `CUresult` says for each that the context is corrupt, destroyed or unusable, or that the process
/// must be restarted.
pub(crate) fn ends_device(code: u32) -> bool {
    const ENDS: [u32; 17] = [
        4,   // DEINITIALIZED
        46,  // DEVICE_UNAVAILABLE
        214, // ECC_UNCORRECTABLE
        220, // NVLINK_UNCORRECTABLE
        226, // CONTAINED
        700, // ILLEGAL_ADDRESS
        702, // LAUNCH_TIMEOUT
        709, // CONTEXT_IS_DESTROYED
        710, // ASSERT
        714, // HARDWARE_STACK_ERROR
        715, // ILLEGAL_INSTRUCTION
        716, // MISALIGNED_ADDRESS
        717, // INVALID_ADDRESS_SPACE
        718, // INVALID_PC
        719, // LAUNCH_FAILED
        721, // TENSOR_MEMORY_LEAK
        911, // EXTERNAL_DEVICE
    ];
    ENDS.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_breaks_ends_its_device_and_what_a_call_gets_wrong_does_not() {
        for code in [700, 710, 715, 716, 719] {
            assert!(ends_device(code), "{code}");
        }
        for code in [0, 1, OUT_OF_MEMORY, 201, 400, 600, 701, PEER_ACCESS_ALREADY_ENABLED, 801] {
            assert!(!ends_device(code), "{code}");
        }
    }
}
