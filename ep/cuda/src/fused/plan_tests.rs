use streamvm_ep::{Access, DType, Layout, Shape};

use super::*;

/// A view at an address; no element is read.
fn view(address: usize, dtype: DType, dims: &[usize], strides: &[usize], access: Access) -> Operand<'static> {
    let layout = Layout::with_strides(Shape::new(dims).unwrap(), strides, 0).unwrap();
    // SAFETY: planning uses addresses and layouts alone, and never dereferences.
    unsafe { Operand::new(std::ptr::without_provenance_mut(address), dtype, layout, access) }
}

fn described(views: &[(bool, bool)]) -> Vec<FusedView> {
    let of = |(read, written): (bool, bool)| FusedView {
        read: read.then_some(DType::F32),
        written: written.then_some((DType::F32, 0)),
    };
    views.iter().map(|&it| of(it)).collect()
}

#[test]
fn rows_that_lie_side_by_side_are_taken_by_four() {
    let group = described(&[(true, false), (true, true)]);
    let plan = |address: usize| {
        let read = view(address, DType::F32, &[3, 8], &[8, 1], Access::Read);
        let update = view(4096, DType::F32, &[3, 8], &[8, 1], Access::ReadWrite);
        plan_views(&group, &[read, update]).unwrap().unwrap()
    };
    let launch = plan(1024);
    assert_eq!((launch.arguments.vectors, launch.arguments.rank, launch.arguments.elements), (1, 1, 24));
    assert_eq!((launch.blocks, launch.threads), (1, BLOCK));
    assert_eq!(launch.arguments.views[..2].iter().map(|view| view.base).collect::<Vec<_>>(), [1024, 4096]);
    // Not at a multiple of 16 bytes.
    assert_eq!(plan(1028).arguments.vectors, 0);
}

/// The kernel walks in the order of the memory that it writes, so a transposed output is one axis where the inputs allow that.
#[test]
fn axes_are_in_the_order_of_the_written_view() {
    let group = described(&[(true, false), (false, true)]);
    let turned = |address, access| view(address, DType::F32, &[4, 6], &[1, 4], access);
    let launch = plan_views(&group, &[turned(1024, Access::Read), turned(4096, Access::Write)]).unwrap().unwrap();
    assert_eq!((launch.arguments.rank, launch.arguments.vectors), (1, 1));
    let row = view(1024, DType::F32, &[4, 6], &[0, 1], Access::Read);
    let launch = plan_views(&group, &[row, turned(4096, Access::Write)]).unwrap().unwrap();
    assert_eq!((launch.arguments.rank, launch.arguments.vectors, &launch.arguments.shape[..2]), (2, 0, &[6i64, 4][..]));
    assert_eq!(
        [launch.arguments.views[0].strides[..2].to_vec(), launch.arguments.views[1].strides[..2].to_vec()],
        [[1, 0], [4, 1]]
    );
}

#[test]
fn nothing_is_launched_for_no_elements() {
    let group = described(&[(true, false), (false, true)]);
    let none = |address, access| view(address, DType::F32, &[0, 6], &[6, 1], access);
    assert_eq!(plan_views(&group, &[none(1024, Access::Read), none(4096, Access::Write)]), Ok(None));
}

#[test]
fn views_that_are_not_those_of_the_group_are_refused() {
    let group = described(&[(true, false), (false, true)]);
    let read = |address| view(address, DType::F32, &[8], &[1], Access::Read);
    let write = |address| view(address, DType::F32, &[8], &[1], Access::Write);
    assert!(plan_views(&group, &[read(1024), write(4096)]).is_ok());
    let refused = [
        vec![read(1024)],
        vec![write(1024), write(4096)],
        vec![read(1024), read(4096)],
        vec![view(1024, DType::F64, &[8], &[1], Access::Read), write(4096)],
        vec![view(1024, DType::F32, &[4], &[1], Access::Read), write(4096)],
        vec![read(1026), write(4096)],
        vec![read(4096 - 16), write(4096)],
        vec![read(4096), write(4096)],
        vec![read(1024), view(4096, DType::F32, &[8], &[0], Access::Write)],
    ];
    for views in refused {
        assert!(matches!(plan_views(&group, &views), Err(Error::FusedViews(_))), "{views:?}");
    }
}
