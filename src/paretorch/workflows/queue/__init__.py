"""Jobs that any number of workers share, on one machine or many: who has which (`claims`), and what runs them (`jobs`)."""

from paretorch.workflows.queue.claims import (
    LOST_CODE,
    PATIENCE_VARIABLE,
    Claim,
    Claims,
    Silence,
    adopt,
    beat_interval,
    claimed,
    owner_of,
    patience,
)
from paretorch.workflows.queue.engines import choose_engine
from paretorch.workflows.queue.jobs import Ends, Engine, Job, run_jobs
from paretorch.workflows.queue.local import LocalEngine

__all__ = [
    "LOST_CODE",
    "PATIENCE_VARIABLE",
    "Claim",
    "Claims",
    "Ends",
    "Engine",
    "Job",
    "LocalEngine",
    "Silence",
    "adopt",
    "beat_interval",
    "choose_engine",
    "claimed",
    "owner_of",
    "patience",
    "run_jobs",
]
