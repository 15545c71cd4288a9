"""Ticket search: sparse subnetworks that can be trained by themselves (chapter 4, Algorithms 2 to 4)."""

from paretorch.workflows.tickets.bench import Bench
from paretorch.workflows.tickets.loop import run_search, work
from paretorch.workflows.tickets.methods import CS, IMP, IMPC, ISS, SequentialCS, StochasticSupermask, Supermask
from paretorch.workflows.tickets.result import Result, collect
from paretorch.workflows.tickets.search import METHODS, Search, make_method, make_searches
from paretorch.workflows.tickets.storage import Storage, read_ticket

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
