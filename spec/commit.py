"""How the target's state is made to end at what was emitted."""

from dataclasses import dataclass

from spec.protocols import Replayer, Target, TargetPass


@dataclass(frozen=True, kw_only=True)
class PrefixCommit:
    """Adopts the rows of the accepted prefix as the verify pass wrote them: the rest is trimmed, nothing runs again."""

    def commit(
        self, target: Target, passed: TargetPass, inputs: tuple[int, ...], keep: int, replay: Replayer
    ) -> TargetPass:
        """See `spec.protocols.CommitPath`; ``replay`` is not used."""
        target.trim(len(inputs) - keep)
        return passed.first(keep)
