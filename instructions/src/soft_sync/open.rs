//! Open points: the instructions of an unordered stream that may not have passed, for what comes after all of them.

use streamvm_stream::Point;

use super::Observed;

/// Kept without a look at what has passed.
const FEW: usize = 64;

/// Points of one unordered stream: all that have not passed, and at most about as many that have.
#[derive(Clone, Debug, Default)]
pub(super) struct Open {
    pub(super) points: Vec<Point>,
    /// So many are kept before the next look at what has passed.
    most: usize,
}

impl Open {
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
