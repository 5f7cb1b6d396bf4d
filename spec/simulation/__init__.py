"""Recorded runs, and what they would cost with other parts or on another machine."""

from spec.simulation.recording import Cycle, Recording
from spec.simulation.simulator import Simulation, simulate
