"""The cost account of a run, in the names that ds4's stats line made known.

ds4 counts *cycles*: an ordinary decode of a token already chosen (the first token), then perhaps a block. Both loops
are counted so:

- every round is a cycle, and its first token is its anchor; so emitted tokens = cycles + tail_skips + accepted_draft,
  and one more for each generation that ended with a next token, which never became an anchor (``num_pending``);
- a round of the separate loop spends ``target`` time on its anchor, and ``verify`` time if its first draft was right. A
  round of the folded loop spends ``target`` time if it proposed nothing, else ``verify`` time for anchor and drafts
  together.

Two figures say what was saved:

- ``saved`` is ds4's estimate, round by round, of what the work of the verify pass would have cost as plain decodes. In
  the separate loop, as in ds4: accepted drafts, each at the price of that round's own decode. In the folded loop the
  pass did the anchor's work too, and there is no such decode: accepted drafts and the anchor of every drafted round,
  each at the baseline's price. ``net_saved`` = saved - spec_total - propose.
- ``wall_saved`` counts everything: the wall time that the baseline of the same prompt takes for as many tokens
  (``baseline_wall``), minus this run's (``wall``).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from spec.loop.stopwatch import PARTS
from spec.measure.generation import Generation
from spec.rounds import Round

OUTCOMES = ("full", "partial", "miss_first", "no_draft", "no_room", "invalid", "verifier_unavailable", "errors")
TIMERS = (
    *("propose", "snapshot", "verify", "replay", "commit", "spec_total", "target", "other"),
    *("saved", "net_saved", "wall", "baseline_wall", "wall_saved"),
)
PARTS_OF_SPEC = ("snapshot", "verify", "replay", "commit")
TOLERANCE_MS = 1e-3  # ds4 prints milliseconds with three digits


class IdentityError(ValueError):
    """A record contradicts itself; the message begins with the identity's name."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """Counters, histograms and times of one or more generations. Construction checks the identities.

    Attributes:
        cycles: rounds. first_tokens: their anchors.
        proposed, accepted_draft: tokens.
        full, partial, miss_first: drafted rounds in which all, some or none of the proposal was emitted.
        no_draft: rounds without a proposal, for a reason of the block policy or the drafter; contains scheduler_skips.
        no_room: rounds in which the budget or the context left no room for one.
        invalid: rounds whose proposal held ids outside the vocabulary.
        scheduler_skips: rounds in which the block policy judged that drafting does not pay.
        tail_skips: plain rounds near the end of the budget, which are no cycles.
        verifier_unavailable, errors: ds4's; 0 where a loop has no such thing.
        verify_calls: verify passes.
        direct_full_commits, direct_partial_commits: of those, the ones whose rows were all or in part adopted.
        replay_fallbacks: of those, the ones whose accepted tokens were run again. replayed_tokens: how many those were.
        residual_fallbacks: corrections drawn from p, their residual having lost its mass to rounding.
        num_tokens: emitted tokens. num_pending: of those, next tokens that never became an anchor.
        draft_len_hist: drafted rounds by tokens proposed. accepted_len_hist: all rounds by drafts accepted.
        time_ms: ``propose, snapshot, verify, replay, commit, target, other`` are times; ``spec_total`` = snapshot +
            verify + replay + commit; ``other`` is the rest of the rounds' time, ``wall`` all of it; for ``saved,
            net_saved, baseline_wall, wall_saved`` see above, None where there is no baseline to compare with.

    Raises:
        IdentityError: an identity of ds4's counters does not hold.
    """

    cycles: int
    first_tokens: int
    proposed: int
    accepted_draft: int
    full: int
    partial: int
    miss_first: int
    no_draft: int
    no_room: int
    invalid: int
    scheduler_skips: int
    tail_skips: int
    errors: int
    verifier_unavailable: int
    verify_calls: int
    direct_full_commits: int
    direct_partial_commits: int
    replay_fallbacks: int
    replayed_tokens: int
    residual_fallbacks: int = 0
    num_tokens: int
    num_pending: int
    draft_len_hist: Mapping[int, int]
    accepted_len_hist: Mapping[int, int]
    time_ms: Mapping[str, float | None]

    def __post_init__(self) -> None:
        _refuse(self._identities())

    @property
    def accept_rate(self) -> float | None:
        """Accepted over proposed tokens; None if nothing was proposed."""
        return self.accepted_draft / self.proposed if self.proposed else None

    @property
    def avg_accept(self) -> float | None:
        """Accepted drafts a round, undrafted rounds included; None without rounds."""
        return self.accepted_draft / self.cycles if self.cycles else None

    def _identities(self) -> list["Identity"]:
        draft, accepted, time = self.draft_len_hist, self.accepted_len_hist, self.time_ms
        by_outcome = sum(getattr(self, name) for name in OUTCOMES)
        drafted = self.full + self.partial + self.miss_first + self.verifier_unavailable + self.errors
        emitted = self.cycles + self.tail_skips + self.accepted_draft + self.num_pending
        commits = self.direct_full_commits + self.direct_partial_commits + self.replay_fallbacks
        verified, unaccepted = self.full + self.partial, self.cycles - self.full - self.partial
        parts = sum(time[name] or 0.0 for name in ("snapshot", "verify", "replay"))
        rows = [
            equal("cycles = sum of outcomes", self.cycles, by_outcome),
            equal("first_tokens = cycles", self.first_tokens, self.cycles),
            equal("proposed = sum of draft_len_hist", self.proposed, _total(draft)),
            equal("drafted rounds = draft_len_hist", drafted, sum(draft.values())),
            equal("accepted_draft = sum of accepted_len_hist", self.accepted_draft, _total(accepted)),
            equal("cycles = accepted_len_hist", self.cycles, sum(accepted.values())),
            equal("accepted_len_hist[0] = rounds without an accepted draft", accepted.get(0, 0), unaccepted),
            at_most("accepted_draft <= proposed", self.accepted_draft, self.proposed),
            at_most("scheduler_skips <= no_draft", self.scheduler_skips, self.no_draft),
            equal("num_tokens = cycles + tail_skips + accepted_draft + num_pending", self.num_tokens, emitted),
            at_most("full + partial <= verify_calls", verified, self.verify_calls),
            at_most("verify_calls <= full + partial + miss_first", self.verify_calls, verified + self.miss_first),
            equal("verify_calls = sum of commits", self.verify_calls, commits),
            at_most("replay_fallbacks <= replayed_tokens", self.replay_fallbacks, self.replayed_tokens),
            at_most("snapshot + verify + replay <= spec_total", parts, time["spec_total"], TOLERANCE_MS),
        ]
        if time["saved"] is not None:
            net = time["saved"] - time["spec_total"] - time["propose"]
            rows.append(equal("net_saved = saved - spec_total - propose", time["net_saved"], net, TOLERANCE_MS))
        if time.get("wall") is not None:  # ds4's line has none
            wall = sum(time[name] for name in ("propose", "spec_total", "target", "other"))
            rows.append(equal("wall = propose + spec_total + target + other", time["wall"], wall, TOLERANCE_MS))
        if time.get("wall_saved") is not None:
            left = time["baseline_wall"] - time["wall"]
            rows.append(equal("wall_saved = baseline_wall - wall", time["wall_saved"], left, TOLERANCE_MS))
        return rows

    def to_json(self) -> dict[str, Any]:
        """The record's ``account`` object: counters, the two rates, ``time_ms`` and the histograms."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("draft_len_hist", "accepted_len_hist"):
            values[name] = {str(length): count for length, count in sorted(values[name].items())}
        return values | {"accept_rate": self.accept_rate, "avg_accept": self.avg_accept, "time_ms": dict(self.time_ms)}


def account_for(generations: Sequence[Generation], baseline_ms: Sequence[float | None]) -> Account:
    """The account of some generations of either loop, prefills excluded.

    Args:
        generations: one a prompt and repeat.
        baseline_ms: for each, milliseconds a token of plain decoding on the same prompt; None if not measured.

    Raises:
        IdentityError: as `Account`, or a round contradicts itself.
    """
    every_round = [item for generation in generations for item in generation.rounds]
    for item in every_round:
        check_round(item)
    rounds = [item for item in every_round if item.outcome != "tail_skip"]  # ds4 counts these outside its cycles
    commits = Counter(item.commit_kind for item in rounds)
    outcomes = Counter(item.outcome for item in rounds)
    lasts = [(generation.prefill, *generation.rounds)[-1] for generation in generations]
    return Account(
        cycles=len(rounds),
        first_tokens=len(rounds),
        proposed=sum(len(item.proposed) for item in rounds),
        accepted_draft=sum(item.accepted for item in rounds),
        scheduler_skips=sum(item.skip == "scheduler" for item in rounds),
        tail_skips=len(every_round) - len(rounds),
        verify_calls=sum(item.verify_rows > 0 for item in rounds),
        direct_full_commits=commits["direct_full"],
        direct_partial_commits=commits["direct_partial"],
        replay_fallbacks=commits["replay"],
        replayed_tokens=sum(item.replayed_tokens for item in rounds),
        residual_fallbacks=sum(item.has_no_residual for item in rounds),
        num_tokens=sum(len(generation.tokens) for generation in generations),
        num_pending=sum(last.kind != "none" for last in lasts),
        draft_len_hist=Counter(len(item.proposed) for item in rounds if item.proposed),
        accepted_len_hist=Counter(item.accepted for item in rounds),
        time_ms=_times(generations, baseline_ms),
        **{name: outcomes[name] for name in OUTCOMES},
    )


def check_round(item: Round) -> None:
    """Checks that a round's counts do not contradict each other, so that no such round is recorded.

    Raises:
        IdentityError: more was accepted than proposed or emitted, or the tokens do not add up.
    """
    emitted, accepted, proposed = len(item.tokens), item.accepted, len(item.proposed)
    rows = [
        at_most("accepted <= proposed", accepted, proposed),
        at_most("accepted <= emitted", accepted, emitted),
        equal("emitted = accepted, and 1 for a next token", emitted, accepted + (item.kind != "none")),
        at_most("proposed <= gamma", proposed, item.gamma if proposed else 0),
        equal("a reason exactly where nothing was proposed", bool(item.reason), not proposed),
    ]
    _refuse(rows, f"round {item.index}: ")


class Identity(NamedTuple):
    """A relation between counts that must hold, with the values that were found."""

    name: str
    is_held: bool
    found: str


def equal(name: str, left: float, right: float, tolerance: float = 0.0) -> Identity:
    """That two values are the same, within a tolerance."""
    return Identity(name, abs(left - right) <= tolerance, f"{left} and {right}")


def at_most(name: str, left: float, right: float, tolerance: float = 0.0) -> Identity:
    """That one value is no larger than another, within a tolerance."""
    return Identity(name, left <= right + tolerance, f"{left} and {right}")


def _refuse(identities: Sequence[Identity], where: str = "") -> None:
    for identity in identities:
        if not identity.is_held:
            raise IdentityError(f"{where}{identity.name} does not hold: {identity.found}")


def _total(histogram: Mapping[int, int]) -> int:
    return sum(length * count for length, count in histogram.items())


def _times(generations: Sequence[Generation], baseline_ms: Sequence[float | None]) -> dict[str, float | None]:
    rounds = [item for generation in generations for item in generation.rounds]
    times: dict[str, float | None] = {name: 1000 * sum(getattr(item, f"{name}_s") for item in rounds) for name in PARTS}
    times["wall"] = 1000 * sum(item.duration_s for item in rounds)
    times["other"] = times["wall"] - sum(times[name] for name in (*PARTS_OF_SPEC, "propose", "target"))
    times["spec_total"] = sum(times[name] for name in PARTS_OF_SPEC)
    pairs = list(zip(generations, baseline_ms, strict=True))
    saved = [_saved(item, ms) for generation, ms in pairs for item in generation.rounds if item.proposed]
    times["saved"] = None if None in saved else sum(saved)
    times["baseline_wall"] = None if None in baseline_ms else sum(_plain(generation, ms) for generation, ms in pairs)
    is_known = times["saved"] is not None
    times["net_saved"] = times["saved"] - times["spec_total"] - times["propose"] if is_known else None
    is_known = times["baseline_wall"] is not None
    times["wall_saved"] = times["baseline_wall"] - times["wall"] if is_known else None
    return {name: None if times[name] is None else round(times[name], 6) + 0.0 for name in TIMERS}


def _saved(item: Round, baseline_ms: float | None) -> float | None:
    """Milliseconds of plain decoding that the pass of a drafted round replaced."""
    if item.decoded:
        return 1000 * item.accepted * item.target_s
    return None if baseline_ms is None else (item.accepted + 1) * baseline_ms


def _plain(generation: Generation, baseline_ms: float) -> float:
    """Milliseconds that plain decoding takes for the tokens after the first."""
    return baseline_ms * (len(generation.tokens) - len(generation.prefill.tokens))
