//! [`Reduction`]: how a collective combines the elements of the ranks.

use std::fmt;
use std::str::FromStr;

use streamvm::DType;

use crate::transport::Fold;
use crate::transport::RankError;

/// How a collective combines the elements of the ranks. Elements of 16-bit floats are combined as `f32`, and rounded once.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Reduction {
    /// Their sum, of any dtype but `bool`; integers wrap.
    Sum,
    /// Their product, of any dtype but `bool`; integers wrap.
    Prod,
    /// The least of them; of `bool`, whether all are true. Which of several NaN and numbers is least depends on the backend.
    Min,
    /// The greatest of them; of `bool`, whether any is true. As for [`Min`](Reduction::Min) with NaN.
    Max,
    /// Their sum divided by the number of ranks, of floats.
    Mean,
}

impl Reduction {
    /// Every reduction.
    pub const ALL: [Reduction; 5] = [Reduction::Sum, Reduction::Prod, Reduction::Min, Reduction::Max, Reduction::Mean];

    pub(crate) fn fold(self) -> Fold {
        match self {
            Reduction::Sum | Reduction::Mean => Fold::Sum,
            Reduction::Prod => Fold::Prod,
            Reduction::Min => Fold::Min,
            Reduction::Max => Fold::Max,
        }
    }

    /// Why it does not take the dtype; `None` if it does.
    pub fn refuses(self, dtype: DType) -> Option<String> {
        let float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
        match self {
            Reduction::Mean if !float => {
                Some(format!("the mean of {dtype} is not defined; take the sum, or cast to a float"))
            }
            Reduction::Sum | Reduction::Prod if dtype == DType::Bool => {
                Some(format!("the {self} of bool is not defined; take min (all) or max (any), or cast to an integer"))
            }
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Prod => "prod",
            Reduction::Min => "min",
            Reduction::Max => "max",
            Reduction::Mean => "mean",
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Reduction {
    type Err = RankError;

    fn from_str(text: &str) -> Result<Reduction, RankError> {
        let found = Reduction::ALL.into_iter().find(|reduction| reduction.name() == text);
        found.ok_or_else(|| {
            RankError::Argument(format!("{text:?} is no reduction; there are sum, prod, min, max and mean"))
        })
    }
}
