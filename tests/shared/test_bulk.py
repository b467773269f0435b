"""Files in memory for large tensors: whole or not there, for this user alone, and none is left behind for ever."""

from pathlib import Path

import numpy as np
import pytest

from shared import bulk
from shared.bulk import BulkFolder, open_bulk
from shared.errors import SettingsError

DATA = np.arange(100_000, dtype=np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> BulkFolder:
    """One that is open."""
    found = open_bulk(str(tmp_path / "bulk"))
    assert found
    return found


def files(tmp_path: Path) -> list[str]:
    """What is in it, but what it is known by."""
    return [file.name for file in (tmp_path / "bulk").iterdir() if file.name != ".id"]


def test_what_was_put_there_can_be_viewed(folder: BulkFolder) -> None:
    """All parts, one after the other; an empty one too."""
    name = folder.put([b"abc", b"", DATA.data.cast("B")], expires_in_s=60)
    assert bytes(folder.view(name)) == b"abc" + DATA.tobytes()
    assert bytes(folder.view(folder.put([], expires_in_s=60))) == b""


def test_a_view_outlives_its_file(folder: BulkFolder, tmp_path: Path) -> None:
    """The gateway drops a file when its client leaves; the worker may be computing from it."""
    name = folder.put([DATA.data.cast("B")], expires_in_s=60)
    view = folder.view(name)
    folder.drop(name)
    assert files(tmp_path) == []
    assert (np.frombuffer(view, np.float32) == DATA).all()
    with pytest.raises(FileNotFoundError):
        folder.view(name)
    folder.drop(name)


def test_who_writes_to_a_view_changes_only_his_own(folder: BulkFolder) -> None:
    """A model may work in place; a request that is tried again must find what the client sent."""
    name = folder.put([DATA.data.cast("B")], expires_in_s=60)
    mine = np.frombuffer(folder.view(name), np.float32)
    mine[:] = -1
    assert (np.frombuffer(folder.view(name), np.float32) == DATA).all()


def test_only_what_has_expired_is_swept(folder: BulkFolder, tmp_path: Path) -> None:
    """A gateway that was killed cannot drop its files; those of others stay."""
    folder.put([b"left by a dead one"], expires_in_s=-1)
    kept = folder.put([b"in use"], expires_in_s=60)
    assert folder.sweep() == 1
    assert files(tmp_path) == [kept]


def test_without_room_nothing_is_left_behind(
    folder: BulkFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is everybody's: a share of it stays free, and the request takes the other way."""
    monkeypatch.setattr(bulk, "FREE_SHARE", 1.0)
    monkeypatch.setattr(bulk, "FREE_BYTES_MAX", 1 << 62)
    with pytest.raises(OSError, match="No space left"):
        folder.put([b"x"], expires_in_s=60)
    assert files(tmp_path) == []


def test_a_write_that_fails_leaves_no_half_file(
    folder: BulkFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds a file by its name finds all of it."""

    def full(descriptor: int, parts: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.writev", full)
    with pytest.raises(OSError, match="No space left"):
        folder.put([b"x"], expires_in_s=60)
    assert files(tmp_path) == []


@pytest.mark.parametrize("name", ["", ".id", "../secret", "/etc/passwd", "0" * 31, "0" * 32 + "/x", "A" * 32])
def test_no_name_leads_out_of_the_folder(folder: BulkFolder, name: str) -> None:
    """Names come from Redis, where others may write."""
    with pytest.raises(FileNotFoundError):
        folder.view(name)


def test_a_link_is_not_followed(folder: BulkFolder, tmp_path: Path) -> None:
    """What lies outside is not a tensor."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "bulk" / ("0" * 32)).symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        folder.view("0" * 32)


def test_who_sees_the_same_folder_knows_it_by_the_same_token(tmp_path: Path) -> None:
    """Two containers may have a folder of the same name each."""
    one, again, other = (open_bulk(str(tmp_path / name)) for name in ("a", "a", "b"))
    assert one and again and other
    assert one.token == again.token != other.token


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    """Somebody else may have made it first, to read or to replace what lies in it."""
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(SettingsError, match="closed to others"):
        open_bulk(str(tmp_path / "open"))
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="bulk_dir"):
        open_bulk(str(tmp_path / "file"))


def test_it_can_be_switched_off() -> None:
    """An empty setting: everything goes through Redis."""
    assert open_bulk("") is None
