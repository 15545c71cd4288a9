"""Ticket search: sparse subnetworks that can be trained by themselves (chapter 4, Algorithms 2 to 4)."""

from paretorch.workflows.tickets.bench import Bench
from paretorch.workflows.tickets.continuous import CS, SequentialCS, Supermask
from paretorch.workflows.tickets.files import read_ticket
from paretorch.workflows.tickets.loop import run_search
from paretorch.workflows.tickets.magnitude import IMP, IMPC
from paretorch.workflows.tickets.result import Result, collect
from paretorch.workflows.tickets.search import METHODS, Search, make_method, make_searches
from paretorch.workflows.tickets.stochastic import ISS, StochasticSupermask
from paretorch.workflows.tickets.storage import Storage
from paretorch.workflows.tickets.worker import work

__all__ = [
    "CS",
    "IMP",
    "IMPC",
    "ISS",
    "METHODS",
    "Bench",
    "Result",
    "Search",
    "SequentialCS",
    "StochasticSupermask",
    "Storage",
    "Supermask",
    "collect",
    "make_method",
    "make_searches",
    "read_ticket",
    "run_search",
    "work",
]
