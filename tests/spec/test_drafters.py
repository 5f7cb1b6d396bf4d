"""Drafters without a network."""

import pytest

from spec import NgramDrafter, NoneDrafter, OracleDrafter, Proposal, RandomStream, UserError
from tests.spec.doubles import context_at

DRAWS = RandomStream(seed=3)


def propose(drafter, text: list[int], gamma: int) -> Proposal:
    """Shows all but the last token, which is the anchor."""
    drafter.reset(len(text))
    drafter.observe(text[:-1], None)
    return drafter.propose(context_at(text[-1], len(text) - 1, DRAWS), gamma)


def by_hand(text: list[int], n_max: int, n_min: int, gamma: int) -> tuple[int, ...]:
    """The rule as it reads: longest suffix first, then the most recent earlier occurrence."""
    for n in range(n_max, n_min - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if n < len(text) and text[start : start + n] == text[-n:]:
                return tuple(text[start + n : start + n + gamma])
    return ()


def test_ngram_takes_the_longest_suffix_and_its_last_occurrence() -> None:
    drafter = NgramDrafter(n_max=3, n_min=2)
    assert propose(drafter, [1, 2, 3, 9, 2, 3, 7, 1, 2, 3], 2).tokens == (9, 2)  # three tokens beat two
    assert propose(drafter, [2, 3, 5, 4, 2, 3, 6, 4, 2, 3], 3).tokens == (6, 4, 2)  # "4 2 3" was followed by 6
    assert propose(drafter, [2, 3, 5, 2, 3, 6, 8, 2, 3], 1).tokens == (6,)  # the later of two
    assert propose(drafter, [7, 7, 7, 7], 4).tokens == (7,)  # an overlapping occurrence, then the text ends


def test_ngram_says_why_it_has_nothing() -> None:
    drafter = NgramDrafter(n_max=3, n_min=2)
    assert propose(drafter, [1, 2, 3, 4, 3], 4).reason == "no earlier occurrence of the last 2 to 3 tokens"
    assert propose(drafter, [5], 4).reason  # a text of one token has no earlier occurrence of anything


def test_ngram_is_the_rule_on_random_texts() -> None:
    for seed in range(200):
        bits = [int(4 * RandomStream(seed=seed).uniform(position, "draft")) for position in range(24)]
        text = [1 << (16 * bit) for bit in bits]  # ids whose bytes repeat across the borders of items
        found = propose(NgramDrafter(n_max=4, n_min=1), text, 5).tokens
        assert found == by_hand(text, 4, 1, 5)


def test_ngram_forgets_at_a_reset() -> None:
    drafter = NgramDrafter(n_max=2, n_min=1)
    drafter.reset(3)
    drafter.observe([1, 2, 3], None)
    assert drafter.propose(context_at(4, 3, DRAWS), 1).reason
    drafter.observe([1], None)
    assert drafter.propose(context_at(2, 4, DRAWS), 2).tokens == (3, 1)
    drafter.reset(1)
    assert drafter.propose(context_at(2, 0, DRAWS), 2).reason


@pytest.mark.parametrize(("n_min", "n_max"), [(0, 3), (3, 2)])
def test_ngram_refuses_impossible_lengths(n_min: int, n_max: int) -> None:
    with pytest.raises(UserError, match=r"n_min (must|and n_max must satisfy 1 <= n_min <= n_max)"):
        NgramDrafter(n_max=n_max, n_min=n_min)


def test_oracle_is_right_at_the_given_rate_and_depends_on_the_position_alone() -> None:
    known = list(range(4000))
    drafter = OracleDrafter(accept_rate=0.7)
    spoken = {"reference": known, "prompt_length": 10}
    # position 9 + i holds known[i - 1]: the anchor there is followed by known[i]
    single = [drafter.propose(context_at(0, 9 + index, DRAWS, **spoken), 1).tokens[0] for index in range(4000)]
    right = sum(token == truth for token, truth in zip(single, known, strict=True)) / 4000
    assert abs(right - 0.7) < 0.03
    assert drafter.propose(context_at(0, 9, DRAWS, **spoken), 4000).tokens == tuple(single)
    other = drafter.propose(context_at(0, 9, RandomStream(seed=4), **spoken), 4000).tokens
    assert other != tuple(single)
    assert all(token >= 0 for token in single)


def test_oracle_ends_with_the_known_text_and_needs_one() -> None:
    drafter = OracleDrafter(accept_rate=1.0)
    spoken = {"reference": [5, 6, 7], "prompt_length": 2}
    assert drafter.propose(context_at(5, 2, DRAWS, **spoken), 9).tokens == (6, 7)
    assert drafter.propose(context_at(7, 4, DRAWS, **spoken), 9).reason == "the known continuation ends here"
    with pytest.raises(UserError, match="baseline=true"):
        drafter.propose(context_at(5, 2, DRAWS), 9)
    for rate in (-0.1, 1.1):
        with pytest.raises(UserError, match="accept_rate"):
            OracleDrafter(accept_rate=rate)


def test_none_proposes_nothing() -> None:
    assert NoneDrafter().propose(context_at(1, 2, DRAWS), 5) == Proposal(reason="there is no drafter")


def test_a_proposal_has_tokens_or_a_reason() -> None:
    for values in ({}, {"tokens": (1,), "reason": "because"}):
        with pytest.raises(ValueError, match="tokens or a reason"):
            Proposal(**values)
    with pytest.raises(ValueError, match="confidence needs one value"):
        Proposal(tokens=(1, 2), confidence=(0.5,))
