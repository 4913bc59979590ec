use crate::high::upper::Upper;
