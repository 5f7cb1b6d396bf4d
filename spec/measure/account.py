"""The cost account of a run, in the names that ds4's stats line made known (``dspark.md`` c.4).

ds4 counts *cycles*: an ordinary decode of a token already chosen (the first token), then perhaps a block. The
convention for the folded loop, where the anchor rides in the verify pass:

- every round is a cycle, and its first token is its anchor; so emitted tokens = cycles + tail_skips + accepted_draft,
  and one more for each generation that ended with a next token, which never became an anchor (``num_pending``);
- a round that proposed nothing spends ``target`` time, one that did spends ``verify`` time for anchor and drafts
  together;
- what a drafted round saved is what plain decoding, by the baseline of the same prompt, would have paid for its
  accepted drafts *and its anchor*: the pass did the anchor's work too. ds4's own ``saved`` counts accepted drafts only.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from spec.generation import Generation

OUTCOMES = ("full", "partial", "miss_first", "no_draft", "no_room", "invalid", "verifier_unavailable", "errors")
TIMERS = ("propose", "snapshot", "verify", "replay", "commit", "spec_total", "target", "other", "saved", "net_saved")
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
        num_tokens: emitted tokens. num_pending: of those, next tokens that never became an anchor.
        draft_len_hist: drafted rounds by tokens proposed. accepted_len_hist: all rounds by drafts accepted.
        time_ms: ``propose, snapshot, verify, replay, commit, target, other`` are times; ``spec_total`` = snapshot +
            verify + replay + commit; ``saved`` and ``net_saved`` = saved - spec_total - propose are None without a
            baseline. ``other`` is the rest of the rounds' wall time.

    Raises:
        IdentityError: an identity of ``dspark.md`` c.4 does not hold.
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
    num_tokens: int
    num_pending: int
    draft_len_hist: Mapping[int, int]
    accepted_len_hist: Mapping[int, int]
    time_ms: Mapping[str, float | None]

    def __post_init__(self) -> None:
        for name, is_held, values in self._identities():
            if not is_held:
                raise IdentityError(f"{name} does not hold: {values}")

    @property
    def accept_rate(self) -> float | None:
        """Accepted over proposed tokens; None if nothing was proposed."""
        return self.accepted_draft / self.proposed if self.proposed else None

    @property
    def avg_accept(self) -> float | None:
        """Accepted drafts a round, undrafted rounds included; None without rounds."""
        return self.accepted_draft / self.cycles if self.cycles else None

    def _identities(self) -> list[tuple[str, bool, str]]:
        draft, accepted, time = self.draft_len_hist, self.accepted_len_hist, self.time_ms
        by_outcome = sum(getattr(self, name) for name in OUTCOMES)
        drafted = self.full + self.partial + self.miss_first + self.verifier_unavailable + self.errors
        in_draft_hist = sum(length * count for length, count in draft.items())
        in_accepted_hist = sum(length * count for length, count in accepted.items())
        emitted = self.cycles + self.tail_skips + self.accepted_draft + self.num_pending
        parts = sum(time[name] or 0.0 for name in ("snapshot", "verify", "replay"))
        rows = [
            ("cycles = sum of outcomes", self.cycles == by_outcome, f"{self.cycles} and {by_outcome}"),
            ("first_tokens = cycles", self.first_tokens == self.cycles, f"{self.first_tokens} and {self.cycles}"),
            (
                "proposed = sum of draft_len_hist",
                self.proposed == in_draft_hist,
                f"{self.proposed} and {in_draft_hist}",
            ),
            ("drafted rounds = draft_len_hist", drafted == sum(draft.values()), f"{drafted} and {sum(draft.values())}"),
            (
                "accepted_draft = sum of accepted_len_hist",
                self.accepted_draft == in_accepted_hist,
                f"{self.accepted_draft} and {in_accepted_hist}",
            ),
            (
                "cycles = accepted_len_hist",
                self.cycles == sum(accepted.values()),
                f"{self.cycles} and {sum(accepted.values())}",
            ),
            (
                "accepted_len_hist[0] = rounds without an accepted draft",
                accepted.get(0, 0) == self.cycles - self.full - self.partial,
                f"{accepted.get(0, 0)} and {self.cycles - self.full - self.partial}",
            ),
            (
                "accepted_draft <= proposed",
                self.accepted_draft <= self.proposed,
                f"{self.accepted_draft} and {self.proposed}",
            ),
            (
                "scheduler_skips <= no_draft",
                self.scheduler_skips <= self.no_draft,
                f"{self.scheduler_skips} and {self.no_draft}",
            ),
            (
                "num_tokens = cycles + tail_skips + accepted_draft + num_pending",
                self.num_tokens == emitted,
                f"{self.num_tokens} and {emitted}",
            ),
            (
                "spec_total >= snapshot + verify + replay",
                time["spec_total"] >= parts - TOLERANCE_MS,
                f"{time['spec_total']} and {parts}",
            ),
        ]
        if time["saved"] is not None:
            net = time["saved"] - time["spec_total"] - time["propose"]
            is_held = abs(net - time["net_saved"]) <= TOLERANCE_MS
            rows.append(("net_saved = saved - spec_total - propose", is_held, f"{time['net_saved']} and {net}"))
        return rows

    def to_json(self) -> dict[str, Any]:
        """The record's ``account`` object: counters, the two rates, ``time_ms`` and the histograms."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("draft_len_hist", "accepted_len_hist"):
            values[name] = {str(length): count for length, count in sorted(values[name].items())}
        return values | {"accept_rate": self.accept_rate, "avg_accept": self.avg_accept, "time_ms": dict(self.time_ms)}


def account_for(generations: Sequence[Generation], baseline_ms: Sequence[float | None]) -> Account:
    """The account of some generations of the folded loop. Prefills count in nothing.

    Args:
        generations: one a prompt and repeat.
        baseline_ms: for each, milliseconds a token of plain decoding on the same prompt; None if not measured.

    Raises:
        IdentityError: as `Account`.
    """
    every_round = [item for generation in generations for item in generation.rounds]
    rounds = [item for item in every_round if item.outcome != "tail_skip"]  # ds4 counts these outside its cycles
    outcomes = Counter(item.outcome for item in rounds)
    lasts = [(generation.prefill, *generation.rounds)[-1] for generation in generations]
    return Account(
        cycles=len(rounds),
        first_tokens=len(rounds),
        proposed=sum(len(item.proposed) for item in rounds),
        accepted_draft=sum(item.accepted for item in rounds),
        scheduler_skips=sum(item.skip == "scheduler" for item in rounds),
        tail_skips=len(every_round) - len(rounds),
        num_tokens=sum(len(generation.tokens) for generation in generations),
        num_pending=sum(last.kind != "none" for last in lasts),
        draft_len_hist=Counter(len(item.proposed) for item in rounds if item.proposed),
        accepted_len_hist=Counter(item.accepted for item in rounds),
        time_ms=_times(generations, baseline_ms),
        **{name: outcomes[name] for name in OUTCOMES},
    )


def _times(generations: Sequence[Generation], baseline_ms: Sequence[float | None]) -> dict[str, float | None]:
    rounds = [item for generation in generations for item in generation.rounds]
    times: dict[str, float | None] = {
        name: 1000 * sum(getattr(item, f"{name}_s") for item in rounds)
        for name in ("propose", "verify", "replay", "commit", "target")
    }
    times["snapshot"] = 0.0  # the folded loop's state needs none: rollback is a counter
    times["other"] = 1000 * sum(item.duration_s for item in rounds) - sum(times.values())
    times["spec_total"] = times["snapshot"] + times["verify"] + times["replay"] + times["commit"]
    times["saved"] = times["net_saved"] = None
    if None not in baseline_ms:
        times["saved"] = sum(
            (item.accepted + 1) * ms
            for generation, ms in zip(generations, baseline_ms, strict=True)
            for item in generation.rounds
            if item.proposed
        )
        times["net_saved"] = times["saved"] - times["spec_total"] - times["propose"]
    return {name: times[name] for name in TIMERS}
