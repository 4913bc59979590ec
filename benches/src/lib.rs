//! Benchmarks of streamvm: engine workloads beside their floors.
