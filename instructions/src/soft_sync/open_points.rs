//! Open points: the instructions of an unordered stream that may not have passed, for an instruction that comes after all of them.

use streamvm_stream::Point;

use crate::soft_sync::observed::Observed;

/// So many points are kept before the first check for points that have passed.
const FEW: usize = 64;

/// Points of one unordered stream: all that have not passed, and at most about as many that have.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenPoints {
    pub(super) points: Vec<Point>,
    /// So many points are kept before the next check for points that have passed.
    most: usize,
}

impl OpenPoints {
    /// Adds the point of a new instruction.
    #[inline]
    pub(super) fn add(&mut self, point: Point, observed: &mut impl Observed) {
        if self.points.len() >= self.most {
            self.prune(observed);
        }
        self.points.push(point);
    }

    #[cold]
    fn prune(&mut self, observed: &mut impl Observed) {
        self.points.retain(|point| !observed.has_passed(*point));
        self.most = (2 * self.points.len()).max(FEW);
    }
}
