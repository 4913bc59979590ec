//! Suites that share one process.

mod builder_errors;
#[path = "../../tests/src/support/cases.rs"]
mod cases;
mod common;
mod early_records;
mod golden_builder;
mod golden_cpu;
mod golden_cuda;
mod golden_explicit;
mod golden_parts;
mod lists;
mod parts_soft_sync;
mod plain_soft_sync;
mod programs;
mod scopes;
mod soft_sync;
mod text;
