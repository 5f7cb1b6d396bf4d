"""The four verifiers keep the contract; what each does by hand is in `tests.spec.test_verifiers`."""

from spec import BlockVerifier, GreedyVerifier, RejectionVerifier, SampleMatchVerifier, Sampling
from spec.testing import VerifierContract


class TestGreedyVerifier(VerifierContract):
    def make(self, sampling: Sampling) -> GreedyVerifier:
        return GreedyVerifier(sampling=sampling)


class TestSampleMatchVerifier(VerifierContract):
    def make(self, sampling: Sampling) -> SampleMatchVerifier:
        return SampleMatchVerifier(sampling=sampling)


class TestRejectionVerifier(VerifierContract):
    def make(self, sampling: Sampling) -> RejectionVerifier:
        return RejectionVerifier(sampling=sampling)


class TestBlockVerifier(VerifierContract):
    def make(self, sampling: Sampling) -> BlockVerifier:
        return BlockVerifier(sampling=sampling)


def test_what_they_promise() -> None:
    promises = {made.guarantee for made in (GreedyVerifier, SampleMatchVerifier)}
    assert promises == {"tokens"}
    assert {made.guarantee for made in (RejectionVerifier, BlockVerifier)} == {"law"}
