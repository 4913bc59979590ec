//! A layer with two imports that run up, for layers.py to find.

mod inner;

use crate::high;
