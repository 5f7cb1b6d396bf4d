"""Recordings of what an engine did, cycle by cycle: enough to run a loop on them again with other costs.

The cycles of a run are what its drafter and its policy made of the text: how many tokens were proposed and accepted,
and where nothing was. They do not depend on how the loop verifies or commits, so one recording serves every loop shape,
commit path, replay and cost table. (A policy that weighs costs would have decided otherwise at other prices: to see
that, run the policy itself, with ``clock=virtual``.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Literal

from spec.errors import UserError
from spec.measure.records import read_lines

CycleKind = Literal["drafted", "empty", "skip", "plain", "no_room", "invalid", "tail"]


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """One round.

    Attributes:
        kind: ``drafted``; ``empty``: the drafter was asked and had nothing; ``skip``: the scheduler declined;
            ``plain``: the policy did for another reason; ``no_room``, ``invalid``: a proposal that could not be used;
            ``tail``: a plain round that is no cycle.
        proposed: tokens proposed, if drafted.
        accepted: how many of them were emitted.
    """

    kind: CycleKind
    proposed: int = 0
    accepted: int = 0


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The cycles of some generations.

    Attributes:
        name: where it comes from.
        generations: cycles in order, the prefill not among them.
        has_next: for each generation, whether it ended with a next token; if not, with an accepted draft.
    """

    name: str
    generations: tuple[tuple[Cycle, ...], ...]
    has_next: tuple[bool, ...]

    @classmethod
    def from_rounds(cls, path: str) -> "Recording":
        """Reads the ``rounds.jsonl`` of a run.

        Raises:
            UserError: there is none, or it is empty or another kind of file.
        """
        try:
            lines = list(read_lines(path))
            groups = [list(lines) for _, lines in groupby(lines, key=lambda line: (line["prompt_id"], line["repeat"]))]
            generations = tuple(tuple(_cycle(line) for line in group) for group in groups)
            has_next = tuple(group[-1]["kind"] != "none" for group in groups)
        except OSError as error:
            raise UserError(f"recording: {path} cannot be read ({error.strerror}): wanted a rounds.jsonl") from error
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"recording: {path} is no rounds.jsonl of this library: {error!r}") from error
        if not generations:
            raise UserError(f"recording: {path} holds no round")
        return cls(name=path, generations=generations, has_next=has_next)

    @classmethod
    def from_histograms(
        cls,
        *,
        name: str,
        draft_len_hist: Mapping[int, int],
        accepted_len_hist: Mapping[int, int],
        full: int,
        miss_first: int,
        no_draft: int,
        scheduler_skips: int = 0,
        tail_skips: int = 0,
        seed: int = 0,
    ) -> "Recording":
        """One generation with given counts, as ds4 prints them.

        The histograms say how many cycles proposed n and how many accepted k, not which did both, nor in what order.
        ASSUMED: the joint counts of `pair_lengths`, shuffled by the seed, tail rounds last. Neither touches a total as
        long as a pass costs the same at every width and a proposal is linear in its length (m3_ultra); where a table
        slopes (m5_max), the joint counts do.

        Args:
            name: where the counts come from.
            draft_len_hist: drafted cycles by tokens proposed.
            accepted_len_hist: all cycles by drafts accepted.
            full: drafted cycles that accepted all.
            miss_first: drafted cycles that accepted none.
            no_draft: cycles without a proposal, the scheduler's skips among them.
            scheduler_skips: those.
            tail_skips: plain rounds at the end.
            seed: of the order.

        Raises:
            UserError: no run can have these counts.
        """
        drafted = pair_lengths(draft_len_hist, accepted_len_hist, full=full, miss_first=miss_first)
        cycles = [Cycle(kind="drafted", proposed=n, accepted=k) for n, k in drafted]
        cycles += [Cycle(kind="skip")] * scheduler_skips + [Cycle(kind="empty")] * (no_draft - scheduler_skips)
        if scheduler_skips > no_draft or len(cycles) != sum(accepted_len_hist.values()):
            raise UserError(
                f"recording: accepted_len_hist counts {sum(accepted_len_hist.values())} cycles, the drafted and the "
                f"undrafted ones are {len(cycles)}"
            )
        Random(seed).shuffle(cycles)
        whole = (*cycles, *[Cycle(kind="tail")] * tail_skips)
        return cls(name=name, generations=(whole,), has_next=(True,))


def _cycle(line: Mapping[str, object]) -> Cycle:
    if line["proposed"]:
        return Cycle(kind="drafted", proposed=int(line["proposed"]), accepted=int(line["accepted"]))
    if line["outcome"] in ("no_room", "invalid"):
        return Cycle(kind=line["outcome"])
    if line["outcome"] == "tail_skip":
        return Cycle(kind="tail")
    if line["skip"] == "scheduler":
        return Cycle(kind="skip")
    # A policy that declined asked for no token; a drafter that had nothing was asked for some.
    return Cycle(kind="empty" if line["gamma"] else "plain")


def pair_lengths(
    draft_len_hist: Mapping[int, int], accepted_len_hist: Mapping[int, int], *, full: int, miss_first: int
) -> list[tuple[int, int]]:
    """Pairs (proposed, accepted) with given marginals, of which ``full`` are equal and ``miss_first`` accept none.

    The partial blocks fit behind the full ones if, for every length n, the runs of n and more that are not full find
    as many longer blocks: full blocks of length n >= (runs of n and more) - (blocks longer than n). Within these bounds
    the full blocks are spread over lengths in proportion to how often each was drafted; then every partial run, the
    longest first, takes the shortest block that is longer, and what remains of the blocks are the misses.

    Args:
        draft_len_hist: blocks by length, 1 and more.
        accepted_len_hist: blocks by accepted tokens; those of 0 are not read.
        full: blocks that were accepted whole.
        miss_first: blocks of which nothing was accepted.

    Raises:
        UserError: there is no solution.
    """
    lengths = range(1, max([0, *draft_len_hist, *accepted_len_hist]) + 1)
    blocks = {n: draft_len_hist.get(n, 0) for n in lengths}
    runs = {k: accepted_len_hist.get(k, 0) for k in lengths}
    most = {n: min(blocks[n], runs[n]) for n in lengths}
    fulls = {
        n: max(0, sum(runs[k] for k in lengths if k >= n) - sum(blocks[m] for m in lengths if m > n)) for n in lengths
    }
    is_possible = (
        all(fulls[n] <= most[n] for n in lengths)
        and sum(fulls.values()) <= full <= sum(most.values())
        and sum(blocks.values()) - sum(runs.values()) == miss_first
    )
    if not is_possible:
        raise UserError(
            f"recording: no blocks have the lengths {dict(draft_len_hist)} and the accepted runs "
            f"{dict(accepted_len_hist)} with {full} full ones and {miss_first} missed ones"
        )
    while sum(fulls.values()) < full:
        open_to = [n for n in lengths if fulls[n] < most[n]]
        fulls[max(open_to, key=lambda n: full * blocks[n] / sum(blocks.values()) - fulls[n])] += 1
    pairs = [(n, n) for n in lengths for _ in range(fulls[n])]
    left = {n: blocks[n] - fulls[n] for n in lengths}
    for k in reversed(lengths):
        for _ in range(runs[k] - fulls[k]):
            n = next(n for n in lengths if n > k and left[n])
            left[n] -= 1
            pairs.append((n, k))
    return pairs + [(n, 0) for n in lengths for _ in range(left[n])]


def num_tokens(cycles: Sequence[Cycle], has_next: bool) -> int:
    """Tokens that a generation of these cycles emits: the prefill's, the accepted ones, and a next token a cycle."""
    return 1 + sum(cycle.accepted + 1 for cycle in cycles) - (not has_next)
