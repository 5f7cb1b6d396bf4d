"""Targets: a model with the state of one sequence, or a recording in its place."""

from spec.targets.recorded import RecordedTarget
from spec.targets.session import TargetSession
