//! Results of driver calls: the numbers, names and texts of the CUDA driver.

use std::ffi::{CStr, c_int};

/// A result of a driver call other than success.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub(crate) c_int);

/// The result of the body of a driver call.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Code {
            $(#[allow(dead_code, reason = "some are only for faults on demand, by name")]
            pub(crate) const $name: Code = Code($number);)*
        }

        /// Number, name and text of each known result.
        const KNOWN: &[(c_int, &str, &CStr, &CStr)] = &[
            (0, "SUCCESS", c"CUDA_SUCCESS", c"no error"),
            $((
                $number,
                stringify!($name),
                // The name as a C string, made from two literals.
                match CStr::from_bytes_with_nul(concat!("CUDA_ERROR_", stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no NUL inside"),
                },
                match CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
                    Ok(text) => text,
                    Err(_) => panic!("a text has no NUL inside"),
                },
            ),)*
        ];
    };
}

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "initialization error";
    STUB_LIBRARY = 34, "CUDA driver is a stub library";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    INVALID_IMAGE = 200, "device kernel image is invalid";
    INVALID_CONTEXT = 201, "invalid device context";
    NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    INVALID_PTX = 218, "a PTX JIT compilation failed";
    OPERATING_SYSTEM = 304, "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, "invalid resource handle";
    ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    MISALIGNED_ADDRESS = 716, "misaligned address";
    LAUNCH_FAILED = 719, "unspecified launch failure";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    SYSTEM_NOT_READY = 802, "system not yet initialized";
    SYSTEM_DRIVER_MISMATCH = 803, "system has unsupported display driver / cuda driver combination";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from another thread";
    GRAPH_EXEC_UPDATE_FAILURE = 910, "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    UNKNOWN = 999, "unknown error";
}

impl Code {
    /// The code with this number or name; the name with or without `CUDA_ERROR_`.
    pub(crate) fn parse(text: &str) -> Option<Code> {
        if let Ok(number) = text.parse::<c_int>() {
            return (number > 0).then_some(Code(number));
        }
        let short = text.strip_prefix("CUDA_ERROR_").unwrap_or(text);
        let known = KNOWN.iter().find(|known| known.0 > 0 && known.1 == short)?;
        Some(Code(known.0))
    }

    /// Does an error of this kind end its context?
    pub(crate) fn is_sticky(self) -> bool {
        matches!(
            self,
            Code::ECC_UNCORRECTABLE
                | Code::ILLEGAL_ADDRESS
                | Code::LAUNCH_TIMEOUT
                | Code::MISALIGNED_ADDRESS
                | Code::LAUNCH_FAILED
        )
    }
}

/// The name of a result, such as `CUDA_ERROR_NOT_READY`.
pub(crate) fn name(number: c_int) -> Option<&'static CStr> {
    KNOWN.iter().find(|known| known.0 == number).map(|known| known.2)
}

/// The text of a result, such as `device not ready`.
pub(crate) fn text(number: c_int) -> Option<&'static CStr> {
    KNOWN.iter().find(|known| known.0 == number).map(|known| known.3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_by_number_and_by_name() {
        assert_eq!(Code::parse("700"), Some(Code::ILLEGAL_ADDRESS));
        assert_eq!(Code::parse("ILLEGAL_ADDRESS"), Some(Code::ILLEGAL_ADDRESS));
        assert_eq!(Code::parse("CUDA_ERROR_ILLEGAL_ADDRESS"), Some(Code::ILLEGAL_ADDRESS));
        assert_eq!((Code::parse("0"), Code::parse("SUCCESS"), Code::parse("NEVER")), (None, None, None));
        assert_eq!(name(600), Some(c"CUDA_ERROR_NOT_READY"));
        assert_eq!((text(600), name(12345)), (Some(c"device not ready"), None));
    }
}
