//! Two layers with imports that run up, for layers.py to find.

mod high;
mod low;

pub use high::upper::Upper as Renamed;

pub struct OfRoot;
