"""Files are replaced as a whole, by either function and with several writers."""

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paretorch.support.files import replacing, write_file
from paretorch.training.files import alone_in, write_atomically

FUNCTIONS = pytest.mark.parametrize("write", [write_file, write_atomically])
Write = Callable[[Path, bytes], None]


@FUNCTIONS
def test_writers_of_one_file_do_not_meet(write: Write, tmp_path: Path) -> None:
    path, errors = tmp_path / "file", []

    def work(letter: bytes) -> None:
        try:
            for _ in range(20):
                write(path, letter * 50_000)
                assert len(set(path.read_bytes())) == 1
                assert path.stat().st_size == 50_000
        except Exception as error:  # asserted below: a thread cannot raise
            errors.append(error)

    threads = [threading.Thread(target=work, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert os.listdir(tmp_path) == ["file"]


@FUNCTIONS
def test_a_private_file_stays_private(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = os.umask(0o027)
    try:
        write(path, b"old")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o600)
        write(path, b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b"new"


@FUNCTIONS
def test_a_link_stays_one(write: Write, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_what_killed_writers_left_behind_is_swept_away_and_no_file_that_is_being_written(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with replacing(tmp_path / "old") as left:
        Path(left).rename(tmp_path / ".pare.0123456789ab")
        Path(left).touch()
    os.utime(tmp_path / ".pare.0123456789ab", (0, 0))
    with replacing(tmp_path / "new") as written, alone_in(tmp_path):
        assert sorted(os.listdir(tmp_path)) == sorted([Path(written).name, "mine", "old"])
