"""Files that appear whole or not at all, and files that are mapped instead of read.

Every other room writes results through `atomic_write` and opens untrusted
binary files through `map_file`, so that the operating system's refusals reach
the user as one clear line.
"""

from __future__ import annotations

import errno
import glob
import mmap
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from anex.errors import AnexError, InputError, ResourceError

StrPath = str | os.PathLike[str]

_BUFFER = 1 << 20
_DIRECTORY_MISSING = "the folder does not exist"

_REFUSALS: dict[int, tuple[type[AnexError], str, str]] = {
    errno.ENOSPC: (ResourceError, "no space left on the disk", "free some space or choose another folder"),
    errno.EDQUOT: (ResourceError, "the disk quota is used up", "free some space or choose another folder"),
    errno.EFBIG: (
        ResourceError,
        "the file grows larger than the system allows",
        "raise the limit (ulimit -f)",
    ),
    errno.EACCES: (ResourceError, "permission denied", "check the rights of the file and its folder"),
    errno.EPERM: (ResourceError, "permission denied", "check the rights of the file and its folder"),
    errno.EROFS: (ResourceError, "the file system is read-only", "choose another folder"),
    errno.EMFILE: (ResourceError, "too many open files", "raise the limit (ulimit -n)"),
    errno.ENFILE: (ResourceError, "too many open files in the system", "close some programs"),
    errno.ENOMEM: (ResourceError, "not enough memory to map the file", "close some programs"),
    errno.EIO: (ResourceError, "the disk reports an input/output error", "check the disk"),
    errno.ENOENT: (InputError, "no such file", "check the path"),
    errno.ENOTDIR: (InputError, "a part of the path is not a folder", "check the path"),
    errno.EISDIR: (InputError, "this is a folder, not a file", "name a file in it"),
    errno.ENAMETOOLONG: (InputError, "the file name is too long", "choose a shorter name"),
    errno.ELOOP: (InputError, "the symbolic links of the path form a loop", "check the path"),
}


def refusal(error: OSError, path: StrPath) -> AnexError:
    """The anex error that says what the operating system refused, and for which file."""
    known = _REFUSALS.get(error.errno or 0)
    if known is None:
        return ResourceError(error.strerror or str(error), where=os.fspath(path))
    kind, what, hint = known
    return kind(what, where=os.fspath(path), hint=hint)


@contextmanager
def atomic_write(path: StrPath) -> Iterator[BinaryIO]:
    """A new binary file that takes the name `path` once the block ends without an error.

    The bytes go to a temporary file in the same folder, reach the disk (fsync)
    and replace the target in one step; after an error or an interrupt neither
    the temporary file nor a changed target is left.  Readers of an older file
    of that name keep what they have mapped.

    Yields:
        A seekable, writable file.

    Raises:
        ResourceError: No space, no permission, a read-only disk, a limit.
        InputError: The folder does not exist, or the path is no file name.
    """
    try:
        target = Path(os.path.realpath(path))
    except ValueError as error:
        raise InputError(f"the path is not valid: {error}", where=ascii(os.fspath(path))) from error
    if target.is_dir():
        raise InputError("this is a folder, not a file", where=os.fspath(path), hint="name a file in it")
    # The prefix is cut so that a legal target name cannot become an illegal temporary one.
    scratch = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    except FileNotFoundError as error:
        raise InputError(_DIRECTORY_MISSING, where=os.fspath(path), hint="create it first") from error
    except OSError as error:
        raise refusal(error, path) from error
    _hold(descriptor)
    _remove_abandoned(target, scratch)
    try:
        with open(descriptor, "w+b", buffering=_BUFFER) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, target)
    except OSError as error:
        # Errors about other files (a source that is read in the block) keep their own name.
        if error.filename not in (None, os.fspath(scratch)):
            raise
        raise refusal(error, path) from error
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _hold(descriptor: int) -> bool:
    """Lock a temporary file while its writer lives; False where another process holds it."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _remove_abandoned(target: Path, mine: Path) -> None:
    """Remove what killed writers of the same target left: temporary files that nobody holds."""
    for path in target.parent.glob(f"{glob.escape(mine.name[:-20])}*.tmp"):
        with suppress(OSError):
            if path == mine or not path.is_file():
                continue
            with path.open("rb") as file:
                if _hold(file.fileno()):
                    path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable where the system can; some file systems refuse, and lose nothing but that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def map_file(path: StrPath) -> memoryview:
    """The bytes of a regular file, mapped read-only; the mapping lives as long as a view of it.

    Raises:
        InputError: There is no such file, or it is a folder, a pipe or a device.
        ResourceError: The system refuses to open or map it.
    """
    try:
        # Without O_NONBLOCK a named pipe would wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise refusal(error, path) from error
    except ValueError as error:
        raise InputError(f"the path is not valid: {error}", where=ascii(os.fspath(path))) from error
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise InputError("this is a folder, not a file", where=os.fspath(path), hint="name a file in it")
        if not stat.S_ISREG(status.st_mode):
            raise InputError("this is not a regular file", where=os.fspath(path))
        if status.st_size == 0:  # an empty file cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise refusal(error, path) from error
    finally:
        os.close(descriptor)
