"""Writes docs/attacks.md: the table of results/attacks, attack by attack.

python docs/attacks.py
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_HEAD = """# Attacks

What was tried against the library, and what survived; every row comes from a file of [results/attacks](../results/attacks), by the
command beside it. Survived means: the outcome is that of an undisturbed run, bit for bit (within the tolerance that a row names), or one
error of the library in one line; no traceback, no code of the file run, nothing lost, nothing trained twice, no hang above the limit. This page is written by
`python docs/attacks.py`. What is promised about files from strangers is in [SECURITY.md](../SECURITY.md).

| attack | tries | survived | beside | command |
|---|---|---|---|---|
"""
_NOTES = """
All of it ran on two cores beside other work, with a load of up to 22, so that times are upper bounds. What did not survive at first and was mended, each with a test:
temporary files that no later start removed (rounds, tuning, results), a checkpoint left beside the result of a shrink, field names with line breaks in messages, a flipped
bit in the mark of a checksum, a worker that ended in a traceback since its storage was slower than others were patient, living workers that were given up on SQLite since
their beats waited for its lock (the row above has a patience of 10 seconds, with which that happened), journals with a trial that was asked for one value of two, or with
finished trials of which some have no time, and sharded runs that were continued with other last bits in their weights.

## The twelve findings of 0.1.0, and what covers each

| finding | tests |
|---|---|
"""
_FINDINGS = (
    (
        "Code from the current folder ran in child processes",
        ("tests/support/test_processes.py",),
    ),
    (
        "One queued trial went to several workers on SQLite; trial folders had no lock",
        (
            "tests/workflows/tuning/test_storage.py::test_an_enqueued_trial_goes_to_one_worker",
            "tests/workflows/tuning/test_storage.py::test_a_living_worker_whose_beats_are_slow_keeps_its_trial",
            "tests/workflows/queue/test_claims.py::test_of_many_that_try_at_once_one_has_it",
            "tests/faults/test_workers.py",
        ),
    ),
    (
        "A flipped bit in a checkpoint or a ticket file was accepted; there was one generation",
        (
            "tests/training/test_checkpoint_files.py::test_a_flipped_bit_is_noticed_and_the_checkpoint_before_is_used",
            "tests/training/test_checkpoint_files.py::test_a_flipped_bit_in_both_generations_is_refused",
            "tests/faults/test_damaged_files.py::test_every_bit_of_every_byte_in_turn",
        ),
    ),
    (
        "`pare tune` waited for ever for a zombie, a stopped worker or a number in use again",
        (
            "tests/workflows/tuning/test_storage.py::test_a_zombie_or_a_stopped_worker_holds_nobody_up",
            "tests/workflows/queue/test_claims.py::test_a_silent_worker_loses_its_job_to_one_other",
            "tests/faults/test_clocks.py",
        ),
    ),
    (
        "Few bytes of a CIFAR pickle allocated gigabytes or never returned",
        (
            "tests/zoo/test_cifar.py::test_hostile_or_damaged_pickle",
            "tests/zoo/test_cifar.py::test_pickle_that_grows_is_refused_in_little_memory",
        ),
    ),
    (
        "Optuna's CMA-ES unpickled a storage; wrong journals gave raw errors",
        (
            "tests/workflows/tuning/test_storage.py::test_a_hostile_storage_runs_no_code",
            "tests/workflows/tuning/test_storage.py::test_a_wrong_journal_is_one_sentence",
        ),
    ),
    (
        "Going on elsewhere differed without a word",
        (
            "tests/training/test_checkpoint_files.py::test_a_run_that_goes_on_elsewhere_is_told",
            "tests/workflows/check/test_check.py::test_another_environment_is_a_note",
        ),
    ),
    (
        "Damaged run folders: tracebacks, blocking pipes, wrong options accepted",
        (
            "tests/training/test_checkpoint_files.py::test_a_checkpoint_of_other_things_is_refused",
            "tests/training/test_checkpoint_files.py::test_a_pipe_does_not_block",
            "tests/training/test_checkpoint_files.py::test_a_folder_that_was_made_again_has_everything_at_the_end",
            "tests/training/test_recipe.py",
            "tests/faults/test_damaged_files.py::test_mutations",
        ),
    ),
    (
        "A truncated compiled library in the cache ended every process",
        ("tests/optim/test_compiled.py::test_damaged_libraries_are_compiled_again",),
    ),
    (
        "A killed study left processes and temporary files behind",
        (
            "tests/faults/test_orphans.py",
            "tests/support/test_files.py::test_what_killed_writers_left_behind_is_swept_away_and_no_file_that_is_being_written",
        ),
    ),
    (
        "`plan.step()` without the GradScaler in use; optimizers of `model.parameters()`",
        (
            "tests/core/test_loop_checks.py::test_a_scaler_that_the_plan_is_not_given_is_refused",
            "tests/core/test_loop_checks.py::test_an_optimizer_of_all_parameters_is_refused",
        ),
    ),
    (
        "`pt.save` after torchao's `quantize_`, and a missing database driver, gave raw errors",
        (
            "tests/deploy/test_torchao.py::test_quantized_after_finalize",
            "tests/deploy/test_refusals.py::test_a_weight_that_is_a_tensor_subclass",
            "tests/workflows/tuning/test_storage.py::test_a_missing_driver_is_named",
        ),
    ),
)
_BESIDE = {
    "lives": "{:,} lives",
    "slowest_s": "slowest {} s",
    "peak_mib": "peak {} MiB",
    "accepted": "{:,} still valid",
    "coverage": "{:,} edges",
    "kills": "{:,} kills",
    "settings": "{:,} settings",
    "interval": "a checkpoint every {} steps",
    "most_lost": "at most {} steps lost",
    "tolerance": "losses within {:g}",
    "limit_s": "limit {:g} s",
}


def table() -> str:
    """The page."""
    rows: list[tuple[dict[str, Any], str]] = []
    for path in sorted((ROOT / "results" / "attacks").glob("*.json")):
        record = json.loads(path.read_text())
        rows += [(row, record["command"]) for row in record.get("rows", [record])]
    lines = []
    for row, command in rows:
        beside = ", ".join(text.format(row[name]) for name, text in _BESIDE.items() if row.get(name) is not None)
        lines.append(f"| {row['attack']} | {row['tries']:,} | {row['survived']:,} | {beside} | `{command}` |")
    kinds = {"kill -9": "kills", "fuzzed": "executions of atheris", "mutated": "mutated files and folders"}
    totals = {
        words: sum(row["tries"] for row, _ in rows if row["attack"].startswith(kind)) for kind, words in kinds.items()
    }
    total = ", ".join(f"{count:,} {words}" for words, count in totals.items())
    found = [
        f"| {number}. {what} | " + ", ".join(f"[{_told(test)}](../{test.split('::')[0]})" for test in tests) + " |"
        for number, (what, tests) in enumerate(_FINDINGS, 1)
    ]
    return _HEAD + "\n".join(lines) + f"\n\nIn all: {total}.\n" + _NOTES + "\n".join(found) + "\n"


def _told(test: str) -> str:
    """A test as it is shown: its name, or that of its file if all of it is meant."""
    path, _, name = test.partition("::")
    require_test(path, name)
    return f"`{name or Path(path).name}`"


def require_test(path: str, name: str) -> None:
    """Raise unless the test is there."""
    if not name:
        assert (ROOT / path).is_file(), path
    else:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


if __name__ == "__main__":
    (ROOT / "docs" / "attacks.md").write_text(table())
