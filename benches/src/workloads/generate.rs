//! The operations of the random workload: the same on every machine, and for every engine that is compared.

/// Variables of the random workload.
pub const VARIABLES: usize = 256;

/// The most reads of one operation.
const READS: usize = 3;

/// One operation: the variables that it reads, and another variable that it writes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RandomOp {
    reads: [u32; READS],
    count: u8,
    /// The written variable; not among the reads.
    pub write: u32,
}

impl RandomOp {
    /// The read variables: 1 to 3, all different.
    pub fn reads(&self) -> &[u32] {
        &self.reads[..usize::from(self.count)]
    }
}

/// xorshift64 (Marsaglia 2003), of which the 16 low bits are dropped.
struct Xorshift(u64);

impl Xorshift {
    fn step(&mut self) {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.step();
        (self.0 >> 16) % bound
    }
}

/// The first `count` operations of the fixed sequence.
pub fn random_ops(count: usize) -> Vec<RandomOp> {
    let mut random = Xorshift(0x9E37_79B9_7F4A_7C15);
    let variables = VARIABLES as u64;
    let op = |_| {
        let write = random.below(variables) as u32;
        let wanted = 1 + random.below(READS as u64) as usize;
        let (mut reads, mut found) = ([0; READS], 0);
        while found < wanted {
            let read = random.below(variables) as u32;
            if read != write && !reads[..found].contains(&read) {
                reads[found] = read;
                found += 1;
            }
        }
        RandomOp { reads, count: wanted as u8, write }
    };
    (0..count).map(op).collect()
}

/// Steps of [`work`] that take about a microsecond: each step depends on the one before.
const STEPS: u32 = 500;

/// The number of steps that operation `op` of the irregular workload works: 1 to 9 times `STEPS`, mixed by the finalizer of
/// MurmurHash3.
pub fn steps_of(op: usize) -> u32 {
    let mut mixed = op as u32 + 1;
    mixed = (mixed ^ mixed >> 16).wrapping_mul(0x85EB_CA6B);
    mixed = (mixed ^ mixed >> 13).wrapping_mul(0xC2B2_AE35);
    (1 + (mixed ^ mixed >> 16) % 9) * STEPS
}

/// Does `steps` steps of work that can be repeated on any machine and in any language; the compiler does not remove them.
pub fn work(steps: u32) {
    let mut random = Xorshift(u64::from(steps) | 1);
    for _ in 0..steps {
        random.step();
    }
    std::hint::black_box(random.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_irregular_and_five_times_the_least_on_average() {
        let steps: Vec<u32> = (0..90_000).map(steps_of).collect();
        for times in 1..=9 {
            let count = steps.iter().filter(|steps| **steps == times * STEPS).count();
            assert!((9_000..=11_000).contains(&count), "{count} of {times}");
        }
        assert!((0..1_000).any(|op| steps_of(op) > 8 * steps_of(op + 1)), "long beside short");
    }

    #[test]
    fn operations_are_well_formed_and_always_the_same() {
        let ops = random_ops(1_000);
        assert_eq!(ops, random_ops(2_000)[..1_000]);
        for op in &ops {
            let mut reads = op.reads().to_vec();
            reads.sort_unstable();
            reads.dedup();
            assert_eq!(reads.len(), op.reads().len(), "reads differ from each other: {op:?}");
            assert!((1..=READS).contains(&reads.len()) && !reads.contains(&op.write), "{op:?}");
        }
    }
}
