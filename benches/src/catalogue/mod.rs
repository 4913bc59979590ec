//! All cases and all curves by name.
//!
//! Layer: uses `harness`, `workloads`, `parts`, `floors` and `growth`; is used by `report` and the programs that measure.
//!
//! Main parts: [`CASES`](cases::CASES) lists the workloads and floors, and [`floor_of`](cases::floor_of) gives the floor of a metric;
//! [`CURVES`](curve::CURVES) lists each [`Curve`](curve::Curve), one workload at growing sizes; a [`Verdict`](verdict::Verdict) says whether a
//! series of a curve is near-linear.

pub mod cases;
pub mod curve;
pub mod verdict;
