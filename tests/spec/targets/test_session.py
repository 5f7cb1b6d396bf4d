"""The target's session: what a pass returns, and how state is taken back."""

import mlx.core as mx
import pytest

from models import Model
from spec import TargetSession, UserError
from tests.models.cache_rows import assert_same_rows, reachable_rows
from tests.random_models import random_tokens
from tests.spec.doubles import prefilled

TOKENS = random_tokens(40, seed=11)[0].tolist()


def test_a_pass_returns_logits_and_tapped_features_of_every_row(tiny_model: Model) -> None:
    session = TargetSession(tiny_model, tapped_layers=(0, 2), max_rollback=4)
    absorbed = prefilled(session, TOKENS[:10])
    passed = session.forward(TOKENS[10:16])
    logits, features = tiny_model(mx.array([TOKENS[:16]]), tapped_layers=(0, 2))
    hidden = tiny_model.args.hidden_size
    assert absorbed.shape == (10, 2 * hidden)
    assert passed.features.shape == (6, 2 * hidden)
    assert passed.logits.shape == (6, tiny_model.args.vocab_size)
    assert mx.allclose(mx.concatenate([absorbed, passed.features]), features[0], atol=1e-5)
    assert mx.allclose(passed.logits, logits[0, 10:], atol=1e-4)
    assert session.offset == 16
    first = passed.first(2)
    assert mx.array_equal(first.logits, passed.logits[:2])
    assert mx.array_equal(first.features, passed.features[:2])


def test_without_taps_there_are_no_features(tiny_model: Model) -> None:
    session = TargetSession(tiny_model)
    assert prefilled(session, TOKENS[:3]) is None
    passed = session.forward(TOKENS[3:5])
    assert passed.features is None
    assert passed.first(1).features is None


def test_a_snapshot_can_be_restored_again_and_again(tiny_model: Model) -> None:
    session = TargetSession(tiny_model, max_rollback=6)
    empty = session.snapshot()
    prefilled(session, TOKENS[:18])
    taken = session.snapshot()
    rows = reachable_rows(session.cache, tiny_model.args)
    expected = session.forward(TOKENS[18:24]).logits
    for _ in range(2):
        session.restore(taken)
        assert session.offset == 18
        assert_same_rows(session.cache, rows, tiny_model.args)
        assert mx.array_equal(session.forward(TOKENS[18:24]).logits, expected)
    session.restore(empty)
    assert session.offset == 0
    prefilled(session, TOKENS[:18])
    assert mx.array_equal(session.forward(TOKENS[18:24]).logits, expected)


def test_trim_takes_back_exactly_and_refuses_more_than_the_headroom(tiny_model: Model) -> None:
    session = TargetSession(tiny_model, max_rollback=6)
    prefilled(session, TOKENS[:18])
    rows = reachable_rows(session.cache, tiny_model.args)
    session.forward(TOKENS[18:24])
    session.trim(0)
    assert session.offset == 24
    session.trim(6)
    assert_same_rows(session.cache, rows, tiny_model.args)
    session.forward(TOKENS[18:24])
    with pytest.raises(ValueError, match="headroom"):
        session.trim(7)


def test_the_context_is_a_limit(tiny_model: Model) -> None:
    session = TargetSession(tiny_model, context_length=20)
    prefilled(session, TOKENS[:18])
    session.forward(TOKENS[18:20])
    with pytest.raises(UserError, match="context holds 20 tokens, wanted 1 more after 20"):
        session.forward(TOKENS[20:21])
    assert TargetSession(tiny_model).context_length == tiny_model.args.max_position_embeddings
    for context in (0, tiny_model.args.max_position_embeddings + 1):
        with pytest.raises(UserError, match="context must lie in"):
            TargetSession(tiny_model, context_length=context)


def test_reset_forgets(tiny_model: Model) -> None:
    session = TargetSession(tiny_model)
    first = session.forward(TOKENS[:5]).logits
    session.reset()
    assert session.offset == 0
    assert mx.array_equal(session.forward(TOKENS[:5]).logits, first)
