"""Drafters without a network keep the contract; `test_dspark`, `test_mtp` and `test_language_model` have the others."""

import mlx.core as mx

from spec import NgramDrafter, NoneDrafter, OracleDrafter
from spec.testing import ConfidentOracle, DrafterContract, PlannedDrafter, random_text


class TestNgramDrafter(DrafterContract):
    def make(self, target: None) -> NgramDrafter:
        return NgramDrafter(n_max=3, n_min=1)

    def memory(self, drafter: NgramDrafter) -> list[mx.array]:
        return [mx.array(list(drafter._tokens))]


class TestOracleDrafter(DrafterContract):
    def make(self, target: None) -> OracleDrafter:
        return OracleDrafter(accept_rate=0.7)


class TestConfidentOracle(DrafterContract):
    def make(self, target: None) -> ConfidentOracle:
        return ConfidentOracle(accept_rate=0.7)


class TestNoneDrafter(DrafterContract):
    def make(self, target: None) -> NoneDrafter:
        return NoneDrafter()


class TestPlannedDrafter(DrafterContract):
    def make(self, target: None) -> PlannedDrafter:
        return PlannedDrafter(random_text(8, 1000), wrong=frozenset(range(3, 1000, 5)))

    def memory(self, drafter: PlannedDrafter) -> list[mx.array]:
        return [mx.array(drafter.seen)]
