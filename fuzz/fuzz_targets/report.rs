#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamvm_tests::corpus::check("report", data));
