"""Ticket search: sparse subnetworks that can be trained by themselves (chapter 4, Algorithms 2 to 4)."""

from paretorch.sparsity.tickets.bench import Bench
from paretorch.sparsity.tickets.continuous import CS, SequentialCS
from paretorch.sparsity.tickets.files import read_ticket
from paretorch.sparsity.tickets.loop import run_search
from paretorch.sparsity.tickets.magnitude import IMP, IMPC
from paretorch.sparsity.tickets.result import Result, collect
from paretorch.sparsity.tickets.search import METHODS, Search, make_method
from paretorch.sparsity.tickets.stochastic import ISS
from paretorch.sparsity.tickets.storage import Storage
from paretorch.sparsity.tickets.supermask import StochasticSupermask, Supermask
from paretorch.sparsity.tickets.worker import work

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
    "read_ticket",
    "run_search",
    "work",
]
