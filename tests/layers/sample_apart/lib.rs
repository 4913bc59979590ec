pub use low::*;

mod apart;
mod low;
