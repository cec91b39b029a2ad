"""The regular files in an archive, read in memory and within bounds: the archive may be hostile."""

from __future__ import annotations

import bz2
import io
import lzma
import tarfile
import zipfile
import zlib

MAX_BYTES = 8 << 20  # unpacked
MAX_MEMBERS = 2000
MAX_LZMA_MEMORY = 128 << 20


class BadArchive(ValueError):
    """Not an archive, damaged, or larger than the bounds."""


def read_archive(content: bytes) -> dict[str, bytes]:
    """Name to content of the regular files in a tar (plain, gz, bz2, xz) or zip; a leading "./" is dropped."""
    try:
        found = _read_zip(content) if content[:2] == b"PK" else _read_tar(_unpack(content))
    except BadArchive:
        raise
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError) as error:
        raise BadArchive(str(error)) from error
    except Exception as error:  # whatever a hostile archive makes the readers raise, it is no archive
        raise BadArchive(f"damaged ({type(error).__name__})") from error
    return {name.removeprefix("./"): data for name, data in found.items()}


def _unpack(content: bytes) -> bytes:
    if content[:2] == b"\x1f\x8b":
        packed = zlib.decompressobj(wbits=31)
        return _bounded(packed.decompress(content, MAX_BYTES + 1))
    if content[:3] == b"BZh":
        return _bounded(bz2.BZ2Decompressor().decompress(content, MAX_BYTES + 1))
    if content[:6] == b"\xfd7zXZ\x00":
        return _bounded(lzma.LZMADecompressor(memlimit=MAX_LZMA_MEMORY).decompress(content, MAX_BYTES + 1))
    return content


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise BadArchive("it is too large")
    return data


def _read_tar(data: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = MAX_BYTES
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for index, member in enumerate(archive):
            if index >= MAX_MEMBERS or member.size > left:
                raise BadArchive("it is too large")
            if member.isreg():
                file = archive.extractfile(member)
                found[member.name] = file.read(left) if file else b""
                left -= len(found[member.name])
    return found


def _read_zip(content: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = MAX_BYTES
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for index, member in enumerate(archive.infolist()):
            if index >= MAX_MEMBERS or member.file_size > left:
                raise BadArchive("it is too large")
            if not member.is_dir():
                with archive.open(member) as file:
                    found[member.filename] = file.read(left)
                left -= len(found[member.filename])
    return found
