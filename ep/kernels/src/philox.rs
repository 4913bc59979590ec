//! Philox 4x32-10: a random function of a key and a counter (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
//! 3", SC'11). It has no state, so any block can be computed by itself.

/// The paper's multipliers of the halves of the counter, and increments of the key per round.
const FACTORS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

const ROUNDS: u32 = 10;

/// The four words for one counter.
pub(super) fn philox(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let products = [0, 1].map(|half| u64::from(FACTORS[half]) * u64::from(counter[2 * half]));
        let [(high, low), (high2, low2)] = products.map(|product| ((product >> 32) as u32, product as u32));
        counter = [high2 ^ counter[1] ^ key[0], low2, high ^ counter[3] ^ key[1], low];
        key = [0, 1].map(|half| key[half].wrapping_add(STEPS[half]));
    }
    counter
}

/// The four words of block `block` of the random numbers of `seed`: those that the ops `uniform` and `normal` make their numbers of.
pub fn block(seed: u64, block: u64) -> [u32; 4] {
    philox([seed as u32, (seed >> 32) as u32], [block as u32, (block >> 32) as u32, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `kat_vectors` of Random123, the authors' library.
    #[test]
    fn the_published_vectors_come_out() {
        let zeros = philox([0; 2], [0; 4]);
        assert_eq!(zeros, [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        let ones = philox([!0; 2], [!0; 4]);
        assert_eq!(ones, [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let pi = philox([0xa4093822, 0x299f31d0], [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344]);
        assert_eq!(pi, [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]);
    }

    #[test]
    fn seed_and_block_are_key_and_counter_low_words_first() {
        assert_eq!(block(0, 0), philox([0; 2], [0; 4]));
        assert_eq!(block(0x299f31d0_a4093822, 0x85a308d3_243f6a88), {
            philox([0xa4093822, 0x299f31d0], [0x243f6a88, 0x85a308d3, 0, 0])
        });
    }
}
