"""Replay runs given tokens again and leaves the rows that plain decoding leaves."""

import mlx.core as mx
import pytest

from models import Model
from spec import BatchReplay, TargetSession, TokenReplay
from tests.models.cache_rows import assert_same_rows, reachable_rows
from tests.random_models import random_tokens
from tests.spec.doubles import prefilled

TOKENS = random_tokens(24, seed=12)[0].tolist()


@pytest.mark.parametrize(("replay", "passes"), [(TokenReplay(), 5), (BatchReplay(), 1)])
@pytest.mark.parametrize("tapped_layers", [(), (0, 2)])
def test_replayed_rows_are_those_of_plain_decoding(
    tiny_model: Model, replay, passes: int, tapped_layers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TargetSession(tiny_model, tapped_layers=tapped_layers, max_rollback=8)
    prefilled(plain, TOKENS[:13])
    expected = [plain.forward([token]) for token in TOKENS[13:18]]

    target = TargetSession(tiny_model, tapped_layers=tapped_layers, max_rollback=8)
    prefilled(target, TOKENS[:13])
    target.forward([*TOKENS[13:15], 1, 2, 3, 4])  # a verify pass whose rows are then all taken back
    target.trim(6)
    widths = []
    forward = TargetSession.forward
    monkeypatch.setattr(
        TargetSession, "forward", lambda self, tokens: (widths.append(len(tokens)), forward(self, tokens))[1]
    )
    again = replay.run(target, TOKENS[13:18])
    assert len(widths) == passes
    assert sum(widths) == 5
    assert target.offset == 18
    assert_same_rows(target.cache, reachable_rows(plain.cache, tiny_model.args), tiny_model.args)
    assert mx.array_equal(again.logits, mx.concatenate([one.logits for one in expected]))
    if tapped_layers:
        assert mx.array_equal(again.features, mx.concatenate([one.features for one in expected]))
    else:
        assert again.features is None
