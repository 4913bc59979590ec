use crate as c;
use c::apart::Apart;
use crate::nothing;
