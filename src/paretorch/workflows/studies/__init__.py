"""The thesis' tables and figures, one recipe file each, run over seeds."""

from paretorch.workflows.studies.runner import run_study
from paretorch.workflows.studies.study import Study, load_study, study_names
from paretorch.workflows.studies.tickets import run_tickets

__all__ = ["Study", "load_study", "run_study", "run_tickets", "study_names"]
