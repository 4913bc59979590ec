//! Fields of protobuf messages, as their bytes. A message is the bytes of its fields one after the other; each begins with its number and the kind of its value.

/// Adds a field whose value is a number.
#[inline]
pub(crate) fn number(message: &mut Vec<u8>, field: u32, value: u64) {
    varint(message, u64::from(field) << 3);
    varint(message, value);
}

/// Adds a field whose value is a number of eight bytes.
#[inline]
pub(crate) fn fixed(message: &mut Vec<u8>, field: u32, value: u64) {
    varint(message, u64::from(field) << 3 | 1);
    message.extend_from_slice(&value.to_le_bytes());
}

/// Adds a field whose value is a text or another message.
#[inline]
pub(crate) fn bytes(message: &mut Vec<u8>, field: u32, value: &[u8]) {
    varint(message, u64::from(field) << 3 | 2);
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

/// Seven bits a byte, the lowest first; all bytes but the last have their highest bit set.
#[inline]
fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}
