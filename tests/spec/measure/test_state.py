"""The state check: silent where rounds leave plain decoding's rows, and not where they do not."""

import mlx.core as mx
import pytest

from models import Model
from spec import (
    FoldedLoop,
    FullOnlyCommit,
    OracleDrafter,
    PrefixCommit,
    Request,
    RollbackCommit,
    SeparateLoop,
    TargetSession,
    collect,
)
from spec.measure.state import StateCheck
from spec.protocols import CommitPath
from tests.models.cache_rows import reachable_rows
from tests.random_models import random_tokens
from tests.spec.doubles import make_loop, session

PROMPT = random_tokens(11, seed=5)[0].tolist()
LENGTH = 24


def checked(model: Model, shape: type, commit: CommitPath) -> StateCheck:
    """Runs a drafter that errs through a loop, with the check after every round."""
    known = collect(make_loop(session(model)).rounds(Request(prompt=PROMPT, max_tokens=LENGTH + 6))).tokens
    drafter = OracleDrafter(accept_rate=0.6)
    loop = make_loop(session(model, drafter, 4), drafter, 4, shape=shape, commit=commit)
    check = StateCheck(loop.target, session(model, gamma=4))
    for item in loop.rounds(Request(prompt=PROMPT, max_tokens=LENGTH, reference=known)):
        if item.outcome == "prefill":
            check.begin("prompt", PROMPT)
        check.after(item)
    return check


@pytest.mark.parametrize("shape", [FoldedLoop, SeparateLoop])
@pytest.mark.parametrize("commit", [PrefixCommit(), FullOnlyCommit(), RollbackCommit()])
def test_every_commit_path_leaves_plain_decoding_s_rows(tiny_model: Model, shape: type, commit: CommitPath) -> None:
    check = checked(tiny_model, shape, commit)
    assert check.rounds > 4
    assert check.to_json() == {"rounds": check.rounds, "worst_gap": 0.0, "first_difference": None}


def test_a_spoilt_row_is_found_at_once(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trim spoils one row that only a later window pools."""
    real = TargetSession.trim

    def spoiling(self: TargetSession, count: int) -> None:
        real(self, count)
        layer = self.cache[-1]
        slot = (layer.offset - 1) % layer.compressor.frontier.capacity
        rows = layer.compressor.frontier.rows
        layer.compressor.frontier.rows = rows + (mx.arange(rows.shape[1]) == slot)[:, None] * 0.5

    monkeypatch.setattr(TargetSession, "trim", spoiling)
    check = checked(tiny_model, FoldedLoop, PrefixCommit())
    assert check.worst_gap >= 0.5
    difference = check.first_difference
    assert difference is not None
    assert difference.round <= 2  # a row of a window that closes in the same round has been pooled before it is spoilt
    assert difference.rows == f"layer {len(tiny_model.layers) - 1} compressor frontier"


def test_the_session_lists_every_reachable_row(tiny_model: Model) -> None:
    """As the tests' own reading of the cache, store by store, finds them."""
    watched = session(tiny_model)
    for count in (1, 7, 5, 20, 3):
        watched.forward(random_tokens(count, seed=count)[0].tolist())
        found = {name.removeprefix("layer ").replace("compressor ", ""): rows for name, rows in watched.rows().items()}
        expected = reachable_rows(watched.cache, tiny_model.args)
        assert {name.replace("indexer ", "index ") for name in found} == set(expected)
        for name, rows in found.items():
            wanted = expected[name.replace("indexer ", "index ")]
            assert rows.size == wanted.size
            assert rows.size == 0 or mx.array_equal(rows, mx.array(wanted)).item()
