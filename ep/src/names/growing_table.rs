//! Tables of the process that only grow, and whose rows are read without a lock.

use std::sync::OnceLock;

/// Rows of a piece of memory, which is allocated when its first row is written: so a table that is not used takes almost no memory.
const ROWS_OF_A_PIECE: usize = 64;
const PIECES: usize = 64;

/// A table of rows that are written once, each by its number.
pub(crate) struct GrowingTable<T>([OnceLock<Box<[OnceLock<T>]>>; PIECES]);

impl<T> GrowingTable<T> {
    /// The most rows of a table.
    pub(crate) const MOST: usize = ROWS_OF_A_PIECE * PIECES;

    pub(crate) const fn new() -> GrowingTable<T> {
        GrowingTable([const { OnceLock::new() }; PIECES])
    }

    #[inline]
    pub(crate) fn get(&self, row: usize) -> Option<&T> {
        self.0.get(row / ROWS_OF_A_PIECE)?.get()?[row % ROWS_OF_A_PIECE].get()
    }

    /// Writes a row, which is below [`MOST`](GrowingTable::MOST), unless it is written.
    pub(crate) fn set(&self, row: usize, value: T) {
        let piece =
            self.0[row / ROWS_OF_A_PIECE].get_or_init(|| (0..ROWS_OF_A_PIECE).map(|_| OnceLock::new()).collect());
        let _ = piece[row % ROWS_OF_A_PIECE].set(value);
    }

    /// The rows up to the first that is not written.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..GrowingTable::<T>::MOST).map_while(|row| self.get(row))
    }
}
