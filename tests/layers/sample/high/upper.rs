use crate::low::inner;

pub struct Upper;
