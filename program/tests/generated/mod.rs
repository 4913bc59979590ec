//! Generated problems of the planner of memory, for its tests and its table. The same arguments give the same problem.

use streamvm_program::memory::Buffer;

/// Numbers below a bound, by Knuth's linear congruential generator (MMIX); its upper bits are good enough here.
fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// Cuts the rectangle of `span` times and `height` bytes into buffers. So a plan of that peak exists, and leaves no gap.
pub(crate) fn packing(count: usize, height: u64, span: u64, seed: u64) -> Vec<Buffer> {
    let mut draw = numbers(seed);
    let mut boxes = vec![Buffer::new(0, span, height)];
    while boxes.len() < count {
        // The largest of three is cut, so areas do not differ too much.
        let area = |buffer: &Buffer| u128::from(buffer.upper - buffer.lower) * u128::from(buffer.size);
        let drawn = [0; 3].map(|_| draw(boxes.len() as u64) as usize);
        let at = drawn.into_iter().max_by_key(|&at| area(&boxes[at])).unwrap_or(0);
        let (old, length) = (boxes[at], boxes[at].upper - boxes[at].lower);
        if draw(2) == 0 && length > 1 {
            boxes[at].upper = old.lower + 1 + draw(length - 1);
            boxes.push(Buffer { lower: boxes[at].upper, ..old });
        } else if old.size > 1 {
            boxes[at].size = 1 + draw(old.size - 1);
            boxes.push(Buffer { size: old.size - boxes[at].size, ..old });
        }
    }
    // The order must not tell which buffers were one.
    for at in (1..boxes.len()).rev() {
        boxes.swap(at, draw(at as u64 + 1) as usize);
    }
    boxes
}

/// Buffers with lives of all lengths up to 2,048 times, on which first fit ends 2 to 5 percent above the lower bound.
pub(crate) fn long_lives(count: u64, seed: u64) -> Vec<Buffer> {
    let mut draw = numbers(seed);
    (0..count)
        .map(|_| {
            let (lower, longest) = (draw(count / 4), 2 << draw(11));
            let upper = lower + 1 + draw(longest);
            let shift = draw(8);
            Buffer::new(lower, upper, (1 + draw(200)) << shift)
        })
        .collect()
}

/// Buffers as a large network has them: most live shortly, some for long, sizes over several powers of two.
pub(crate) fn many_buffers(count: u64) -> Vec<Buffer> {
    let mut draw = numbers(1);
    (0..count)
        .map(|index| {
            let lower = index + draw(8);
            let length = match draw(10) {
                0 => 1 + draw(count),
                1..=3 => 1 + draw(400),
                _ => 1 + draw(20),
            };
            Buffer::new(lower, lower + length, (1 + draw(64)) << draw(16))
        })
        .collect()
}
