//! Copies between views with their axes in any order, large enough to be copied in tiles and by several threads.

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;

/// All orders of `0..count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else { return vec![Vec::new()] };
    let insert = |order: Vec<usize>| {
        (0..count).map(move |at| {
            let mut longer = order.clone();
            longer.insert(at, last);
            longer
        })
    };
    orders(last).into_iter().flat_map(insert).collect()
}

/// The distance of an element from the first of a view.
fn place(layout: &Layout, index: &[usize]) -> usize {
    index.iter().zip(layout.strides()).map(|(at, stride)| at * stride).sum()
}

/// Every index of a shape, in row-major order.
fn indices(dims: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    let count: usize = dims.iter().product();
    (0..count).map(|number| {
        let mut left = number;
        let mut index: Vec<usize> = dims
            .iter()
            .rev()
            .map(|size| {
                let at = left % size;
                left /= size;
                at
            })
            .collect();
        index.reverse();
        index
    })
}

fn operand<T: Element>(memory: &mut [T], layout: Layout, access: Access) -> Operand<'static> {
    assert!(layout.span_elements().end <= memory.len());
    // SAFETY: the span lies within the memory, which the test keeps alive and untouched while the operand is used.
    unsafe { Operand::new(memory.as_mut_ptr().cast(), T::DTYPE, layout, access) }
}

/// Copies every permutation of a tensor into every permutation of another, and compares each element.
fn permuted<T: Element + Default + PartialEq + std::fmt::Debug>(dims: &[usize], number: impl Fn(usize) -> T) {
    let device = CpuDevice::new(0, CpuConfig { threads: Some(3), ..CpuConfig::default() });
    let mut stream = device.create_stream().unwrap();
    let count: usize = dims.iter().product();
    let mut from: Vec<T> = (0..count).map(number).collect();
    let contiguous = Layout::contiguous(Shape::new(dims).unwrap());
    for order in orders(dims.len()) {
        let source = contiguous.permute(&order).unwrap();
        // The target: contiguous, and with its axes in each order of memory.
        for other in orders(dims.len()) {
            let wanted = source.shape().dims();
            let mut inverse = vec![0; other.len()];
            other.iter().enumerate().for_each(|(place, axis)| inverse[*axis] = place);
            let in_memory: Vec<usize> = other.iter().map(|axis| wanted[*axis]).collect();
            let target = Layout::contiguous(Shape::new(&in_memory).unwrap()).permute(&inverse).unwrap();
            assert_eq!(target.shape().dims(), wanted);
            let mut to = vec![T::default(); count];
            let read = operand(&mut from, source, Access::Read);
            stream.copy(&read, &mut operand(&mut to, target, Access::Write)).unwrap();
            for index in indices(wanted) {
                let (found, expected) = (&to[place(&target, &index)], &from[place(&source, &index)]);
                assert_eq!(found, expected, "{dims:?}, axes {order:?} into {other:?}, element {index:?}");
            }
        }
    }
}

#[test]
fn permuted_copies_reach_every_element() {
    permuted::<u8>(&[3, 65, 67], |i| (i * 31 % 251) as u8 + 1);
    permuted::<u8>(&[17, 4, 19, 3], |i| (i * 31 % 251) as u8 + 1);
    permuted::<f16>(&[2, 16, 33], |i| f16::from_bits((i * 31 % 0x3c00) as u16 + 1));
    permuted::<i32>(&[5, 40, 18], |i| i as i32 + 1);
    permuted::<i64>(&[16, 2, 16, 2], |i| i as i64 + 1);
    permuted::<i32>(&[300, 301], |i| i as i32 + 1);
}
