//! Statements of scripts that run as several ranks.

use streamvm_ranks::Reduction;

use super::{Diagnostic, Number, Parsed, Parser, Span, Spanned, Statement, StatementKind};
use crate::syntax::ast::{CollectiveCall, has_collectives};

impl Parser {
    /// `if rank 0 { ... } else { ... }`
    #[inline(never)]
    pub(super) fn if_rank(&mut self, start: Span) -> Parsed<Statement> {
        self.advance();
        let rank = self.rank()?.value;
        let (span, then) = self.body(start)?;
        let otherwise = self.otherwise()?;
        if has_collectives(&then) || has_collectives(&otherwise) {
            let why = "all ranks issue the same collectives, and the others would wait for this one";
            return Err(Diagnostic::new(span, why).with_help("put the collective before the `if rank` or after it"));
        }
        Ok(Statement { span, kind: StatementKind::IfRank { rank, then, otherwise } })
    }

    /// The number of a rank.
    fn rank(&mut self) -> Parsed<Spanned<u32>> {
        let span = self.span();
        let rank = match self.number("the number of a rank")?.value {
            Number::Int(rank) => u32::try_from(rank).ok(),
            _ => None,
        };
        rank.map(|rank| Spanned::new(rank, span)).ok_or_else(|| Diagnostic::new(span, "ranks are numbered from 0"))
    }

    /// `all_reduce x sum over world`
    #[inline(never)]
    pub(super) fn all_reduce(&mut self) -> Parsed<StatementKind> {
        self.advance();
        let target = self.target()?;
        let what = "how the elements of the ranks are combined: sum, prod, min, max or mean";
        let Some(by) = self.peek_word().and_then(|word| word.parse::<Reduction>().ok()) else {
            return Err(self
                .expected(what)
                .with_help("a reduction over all ranks is written `all_reduce x sum over world`"));
        };
        self.advance();
        self.over_world()?;
        Ok(StatementKind::Collective { call: CollectiveCall::AllReduce(by), target })
    }

    /// `broadcast x from 0 over world`
    #[inline(never)]
    pub(super) fn broadcast(&mut self) -> Parsed<StatementKind> {
        self.advance();
        let target = self.target()?;
        self.require_word("from")
            .map_err(|error| error.with_help("rank 0 gives `x` to all by `broadcast x from 0 over world`"))?;
        let from = self.rank()?;
        self.over_world()?;
        Ok(StatementKind::Collective { call: CollectiveCall::Broadcast { from }, target })
    }

    fn over_world(&mut self) -> Parsed<()> {
        let help = "scripts have one group of ranks: `over world`";
        self.require_word("over").map_err(|error| error.with_help(help))?;
        self.require_word("world").map_err(|error| error.with_help(help))
    }
}
