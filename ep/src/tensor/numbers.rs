//! Numbers that stand where an elementwise op takes tensors, `x * 0.5` is one call, with one tensor and one number; and the numbers of a registered op.

use std::fmt;

use crate::tensor::scalar::Scalar;

/// The most inputs of an elementwise op.
pub(crate) const MOST_INPUTS: usize = 3;

/// The most inputs of an op that can have numbers.
pub(crate) const MOST_PLACES: usize = u8::BITS as usize;

/// The most numbers of a call. One input at least is a tensor, whose dtype the numbers of an elementwise op take.
pub(crate) const MOST_NUMBERS: usize = 2;

/// Which inputs of a call of an elementwise or registered op are numbers, and their values: [`Extra::Numbers`](crate::Extra::Numbers).
///
/// The other inputs are tensors. A call has only these as operands, in their order: `clamp(x, 0.0, high)` has the operands `x` and `high`. A number counts as a
/// tensor of rank 0, of the dtype of the op's [key input](crate::Op::key_input), filled with it.
///
/// Numbers fit any op and any dtype here; [`infer`](crate::infer) refuses those that do not fit the call.
///
/// Invariant: two values that are equal as [`Scalar`]s have the same bits here, and bits that mean nothing are 0. So `Eq` and `Hash` are those of the bytes.
// Bytes, and no words, because they fit beside the tag of `Extra` only without alignment.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct Numbers {
    /// Bit `i`: whether input `i` is a number.
    places: u8,
    /// Bits 0 and 1, 2 and 3: the kind of the first and the second number. Bit 7: a number was added that no op takes.
    kinds: u8,
    values: [[u8; 8]; MOST_NUMBERS],
}

/// The bit of a number that no op takes: there are more than [`MOST_NUMBERS`], or it comes after the last place.
const TOO_MANY: u8 = 1 << 7;

/// The kinds of scalars, as bits of the head.
const FLOAT: u8 = 0;
const SIGNED: u8 = 1;
const UNSIGNED: u8 = 2;
const TRUTH: u8 = 3;

impl Numbers {
    /// No numbers.
    pub const NONE: Numbers = Numbers { places: 0, kinds: 0, values: [[0; 8]; MOST_NUMBERS] };

    /// These, and `value` as the input of this index, in place of a number that was there.
    #[must_use]
    #[inline]
    pub fn with(mut self, input: usize, value: Scalar) -> Numbers {
        let mut number = self.places().filter(|place| *place < input).count();
        if input >= MOST_PLACES || (!self.contains(input) && self.len() == MOST_NUMBERS) {
            self.kinds |= TOO_MANY;
            return self;
        }
        if !self.contains(input) && self.len() == 1 && number == 0 {
            // The number that is there becomes the second one.
            self.values[1] = self.values[0];
            self.kinds = (self.kinds & !(0b11 << 2)) | ((self.kinds & 0b11) << 2);
        }
        number = number.min(MOST_NUMBERS - 1);
        let (kind, bits) = match value {
            Scalar::F64(value) => (FLOAT, value.to_bits()),
            Scalar::I64(value) => (SIGNED, value.cast_unsigned()),
            // Equal to the signed integer of the same value.
            Scalar::U64(value) if i64::try_from(value).is_ok() => (SIGNED, value),
            Scalar::U64(value) => (UNSIGNED, value),
            Scalar::Bool(value) => (TRUTH, value.into()),
        };
        let shift = 2 * number;
        self.kinds = (self.kinds & !(0b11 << shift)) | (kind << shift);
        self.places |= 1 << input;
        self.values[number] = bits.to_ne_bytes();
        self
    }

    /// How many there are.
    #[inline]
    pub const fn len(&self) -> usize {
        self.places.count_ones() as usize
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.places == 0 && self.kinds == 0
    }

    /// Whether the input of this index is a number.
    #[inline]
    pub const fn contains(&self, input: usize) -> bool {
        input < MOST_PLACES && self.places & (1 << input) != 0
    }

    fn places(self) -> impl Iterator<Item = usize> {
        (0..MOST_PLACES).filter(move |&input| self.contains(input))
    }

    /// The number that is the input of this index.
    #[inline]
    pub fn get(&self, input: usize) -> Option<Scalar> {
        if !self.contains(input) {
            return None;
        }
        let number = (self.places & ((1 << input) - 1)).count_ones() as usize;
        let bits = u64::from_ne_bytes(*self.values.get(number)?);
        Some(match self.kinds >> (2 * number) & 0b11 {
            FLOAT => Scalar::F64(f64::from_bits(bits)),
            SIGNED => Scalar::I64(bits.cast_signed()),
            UNSIGNED => Scalar::U64(bits),
            _ => Scalar::Bool(bits != 0),
        })
    }

    /// The numbers with the indices of the inputs that they are, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Scalar)> {
        let numbers = *self;
        (0..MOST_PLACES).filter_map(move |input| Some((input, numbers.get(input)?)))
    }

    /// Whether a number was added that no op takes.
    pub(crate) const fn are_too_many(&self) -> bool {
        self.kinds & TOO_MANY != 0
    }
}

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_where_they_were_put_in_any_order() {
        let [low, high] = [Scalar::F64(-0.5), Scalar::I64(i64::MIN)];
        let one = Numbers::NONE.with(1, low).with(2, high);
        let other = Numbers::NONE.with(2, high).with(1, low);
        assert_eq!(one, other);
        assert_eq!(one.iter().collect::<Vec<_>>(), [(1, low), (2, high)]);
        assert_eq!((one.get(0), one.len(), one.is_empty()), (None, 2, false));
        let replaced = one.with(1, Scalar::Bool(true));
        assert_eq!(replaced.iter().collect::<Vec<_>>(), [(1, Scalar::Bool(true)), (2, high)]);
        let unsigned = Numbers::NONE.with(0, Scalar::U64(u64::MAX));
        assert_eq!(unsigned.get(0), Some(Scalar::U64(u64::MAX)));
    }

    #[test]
    fn equal_scalars_are_equal_numbers() {
        let one = |value: Scalar| Numbers::NONE.with(1, value);
        assert_eq!(one(Scalar::U64(7)), one(Scalar::I64(7)));
        assert_eq!(one(Scalar::F64(f64::NAN)), one(Scalar::F64(f64::NAN)));
        assert_ne!(one(Scalar::F64(0.0)), one(Scalar::F64(-0.0)));
        assert_ne!(one(Scalar::F64(0.0)), one(Scalar::I64(0)));
        assert_ne!(one(Scalar::I64(0)), Numbers::NONE);
        assert_ne!(one(Scalar::I64(0)), Numbers::NONE.with(0, Scalar::I64(0)));
    }
}
