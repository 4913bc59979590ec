//! Orders of buffers: which is placed first by first fit, and which the search tries first among those that may lie at one offset.
//!
//! MiniMalloc (Moffitt, ASPLOS 2023) sorts by combinations of a buffer's length of life, its area and the fill of its fullest section,
//! and tries several of these orders, as none suits all problems. The search adds an order that it learns, from the sections that have
//! ended most branches, and, from the second round on, noise. All keys are integers, so that an order is the same on every machine.

use super::component::Component;

/// A key to sort by, largest first.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Size, then length of life.
    Size,
    /// Size times length of life.
    Area,
    /// Length of life, then area.
    Length,
    /// The fill of the fullest section of the buffer, then area.
    FillArea,
    /// The fill of the fullest section of the buffer, then length of life.
    FillLength,
    /// Size times the number of sections.
    SectionArea,
    /// The number of sections, then size.
    Sections,
    /// Learned: how many branches ended at the worst section of the buffer; then the number of sections.
    Failures,
}

/// Orders of first fit.
pub(super) const OF_FIRST_FIT: [Order; 5] =
    [Order::Size, Order::Area, Order::SectionArea, Order::Length, Order::FillArea];

/// Orders of the search, in turn.
pub(super) const OF_SEARCH: [Order; 6] =
    [Order::Length, Order::FillArea, Order::FillLength, Order::SectionArea, Order::Failures, Order::Sections];

/// Factors by which keys are multiplied: all equal, or drawn between 1 and 1.65.
pub(super) struct Noise(Option<u64>);

impl Noise {
    pub(super) fn none() -> Self {
        Self(None)
    }

    pub(super) fn seeded(seed: u64) -> Self {
        Self(Some(seed))
    }

    /// A factor in 1/1000 (SplitMix64, Steele et al. 2014).
    pub(super) fn factor(&mut self) -> u128 {
        let Some(state) = &mut self.0 else { return 1000 };
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        1000 + u128::from((mixed ^ (mixed >> 31)) % 651)
    }
}

impl Order {
    /// The buffers of a component in this order. `fill` has the sum of sizes of each section and `failures` how many branches ended there.
    pub(super) fn sort(self, component: &Component, fill: &[u64], failures: &[u64], noise: &mut Noise) -> Vec<u32> {
        let keys: Vec<(u128, u128)> = (0..component.len())
            .map(|buffer| {
                let sections = component.sections[buffer].clone();
                let width = sections.len() as u128;
                let size = u128::from(component.sizes[buffer]);
                let length = u128::from(component.lengths[buffer]);
                let most = |of: &[u64]| u128::from(of[sections.clone()].iter().copied().max().unwrap_or(0));
                // Sums of sizes have 63 bits and lengths 64, so a product may lose its last bits to the noise.
                let area = (size * length) >> 10;
                let factor = noise.factor();
                let (first, second) = match self {
                    Self::Size => (size * factor, length),
                    Self::Area => (area * factor, length),
                    Self::Length => (length * factor, area),
                    // The fill differs little between sections, so a tenth of the noise suffices.
                    Self::FillArea => (most(fill) * (9000 + factor), area * factor),
                    Self::FillLength => (most(fill) * (9000 + factor), length * factor),
                    Self::SectionArea => (size * width * factor, length),
                    Self::Sections => (width * factor, size * width),
                    Self::Failures => ((most(failures) + 1) * factor, width),
                };
                (first, second)
            })
            .collect();
        // Ties go by the number of the buffer.
        let mut order: Vec<u32> = (0..component.len() as u32).collect();
        order.sort_by(|&a, &b| keys[b as usize].cmp(&keys[a as usize]).then(a.cmp(&b)));
        order
    }
}

/// The sum of sizes of each section.
pub(super) fn fill(component: &Component) -> Vec<u64> {
    // Differences between neighbouring sections, modulo 2⁶⁴, then their sums.
    let mut fill = vec![0_u64; component.section_count + 1];
    for (sections, &size) in component.sections.iter().zip(&component.sizes) {
        fill[sections.start] = fill[sections.start].wrapping_add(size);
        fill[sections.end] = fill[sections.end].wrapping_sub(size);
    }
    let mut sum = 0_u64;
    for entry in &mut fill {
        sum = sum.wrapping_add(*entry);
        *entry = sum;
    }
    fill.pop();
    fill
}
