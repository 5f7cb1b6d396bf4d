"""Algorithm 1 of the DSpark paper (arXiv 2607.05147, section 3.2) for one request."""

from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from pydantic import SkipValidation
from typing_extensions import override

from spec.blocks.policy import FullBlockPolicy
from spec.blocks.prices import Costs, Prices
from spec.values import checked


@checked("block")
class ThroughputPolicy(FullBlockPolicy):
    """Drafts on while the expected throughput strictly rises, and stops at once where it does not.

    With survivals a_j = c_1 ... c_j, a proposal of l tokens is expected to yield 1 + a_1 + ... + a_l tokens, so its
    throughput is that times SPS(1 + l), steps per second, here 1 / (propose_ms(l) + pass_ms(1 + l)). Stopping at once,
    and not at the best of all lengths, is what keeps the law: c_{k+1} depends on token k, so a search that looks ahead
    lets the token decide its own fate (Appendix A: .85, .15 come out instead of .7, .3).

    A length of 0 is charged a call of the drafter too, since c_1 is only known once it has run. So this decides how far
    to draft in a round; whether to run the drafter at all is `BreakEvenPolicy`'s question. Learns
    nothing: early misses and undrafted rounds change nothing. A drafter without confidences is given the full block.
    Confidences are taken at their word; uncalibrated ones give the wrong lengths, never wrong tokens.

    Attributes:
        gamma: the full block.
        costs: the table, in milliseconds.

    Raises:
        UserError: there is no table, or a value lies outside its range.
    """

    costs: SkipValidation[Costs | None] = None

    def __post_init__(self) -> None:
        _ = self.prices  # a table that does not serve is refused here

    @cached_property
    def prices(self) -> Prices:
        """The table, read out for every block."""
        return Prices.read(self.costs, self.gamma, "throughput")

    @override
    def admits(self, state: Any, confidences: tuple[float, ...]) -> bool:
        """Whether a proposal of k tokens has a higher expected throughput than each shorter one had in turn."""
        survivals = accumulate(confidences, lambda survival, confidence: survival * confidence)
        tokens = accumulate(survivals, initial=1.0)
        rates = [count / self._round_ms(length) for length, count in enumerate(tokens)]
        return all(longer > shorter for shorter, longer in pairwise(rates))

    def _round_ms(self, length: int) -> float:
        return self.prices.proposals[length] + self.prices.passes[length + 1]
