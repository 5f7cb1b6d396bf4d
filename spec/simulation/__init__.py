"""Recorded runs, and what they would have cost otherwise."""

from spec.simulation.recording import Cycle, Recording
from spec.simulation.simulator import Simulation, simulate

__all__ = ["Cycle", "Recording", "Simulation", "simulate"]
