"""attacks.py ATTACK[=NUMBER] rsync --server --sender ...: a host that means harm; it stands before rsync as `rsync_path`.

`ATTACKS` has them by name. A number says how many or how large, 0 for ever.
"""

import hashlib
import itertools
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from stat import S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.beds.hostile_sender import ERROR, INFO, NEGOTIATE, NOOP, PIECE, Listed, Sender

ATTACKS: dict[str, type[Sender]] = {}


def attack(kind: type[Sender]) -> type[Sender]:
    name = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).strip("-")
    ATTACKS[name] = kind
    return kind


def many(number: int) -> Iterable[int]:
    return range(number) if number else itertools.count()


@attack
class Honest(Sender):
    """No attack: a folder, a file with content and a symbolic link, so that only the addition of the other attacks can be the
    cause.
    """

    def listed(self) -> Iterable[Listed]:
        yield Listed(self.below(b"file"), size=len(self.content))
        yield Listed(self.below(b"folder"), S_IFDIR | 0o755)
        yield Listed(self.below(b"folder/link"), S_IFLNK | 0o777, 4, b"file")


@attack
class Large(Honest):
    """The same with a file of a megabyte."""

    content = b"of the host " * 90_000


# --- names


class Outside(Sender):
    """A name that leads out of the source path."""

    name = b""

    def listed(self) -> Iterable[Listed]:
        yield Listed(self.name.replace(b"SOURCE", self.source), size=len(self.content))


@attack
class DotDot(Outside):
    name = b"SOURCE/../../../../../../../../../../../../tmp/btrkeep-evil"


@attack
class DotDotFirst(Outside):
    name = b"../evil"


@attack
class Absolute(Outside):
    name = b"/tmp/btrkeep-evil"


@attack
class Beside(Outside):
    name = b"SOURCE-evil"


@attack
class Record(Outside):
    """The backup's own record, which is one folder above the data."""

    name = b"../backup.json"


@attack
class RootIsFile(Outside):
    name = b"."


@attack
class NulInName(Outside):
    name = b"SOURCE/evil\0/../../evil"


class ThroughLink(Sender):
    """Files below a name that the same list has as a symbolic link to the outside (NUMBER levels up)."""

    order = (0, 1, 2)
    folder_too = True

    def listed(self) -> Iterable[Listed]:
        target = b"../" * (len(self.source.split(b"/")) + 3) + b"neighbour"
        link = Listed(self.below(b"x"), S_IFLNK | 0o777, len(target), target)
        folder = Listed(self.below(b"x"), S_IFDIR | 0o755)
        file = Listed(self.below(b"x/evil"), size=len(self.content))
        listeds = [link, folder, file] if self.folder_too else [link, file]
        return [listeds[at] for at in self.order if at < len(listeds)]


@attack
class LinkAndFolder(ThroughLink):
    pass


@attack
class FolderAndLink(ThroughLink):
    order = (1, 0, 2)


@attack
class LinkOnly(ThroughLink):
    folder_too = False


@attack
class LinkAbove(Sender):
    """The source path itself is a link to the outside."""

    def above(self) -> Iterable[Listed]:
        *above, last = super().above()
        target = b"../" * 12 + b"etc"
        return (*above, Listed(last.name, S_IFLNK | 0o777, len(target), target))

    def listed(self) -> Iterable[Listed]:
        yield Listed(self.below(b"btrkeep-evil"), size=len(self.content))


@attack
class LongNames(Sender):
    """Names of 255 bytes, of 256, and below each other until a path has more than the 4,096 bytes that Linux allows."""

    def listed(self) -> Iterable[Listed]:
        yield Listed(self.below(b"n" * 255), size=len(self.content))
        yield Listed(self.below(b"n" * 256), size=len(self.content))
        name = self.source
        while len(name) < 3700:
            name += b"/" + b"d" * 200
            yield Listed(name, S_IFDIR | 0o755)
        yield Listed(name + b"/" + b"f" * (4094 - len(name)), size=len(self.content))


@attack
class TooLongPath(Sender):
    """A path of 70,000 bytes."""

    def listed(self) -> Iterable[Listed]:
        yield Listed(self.below(b"d/" * 35_000), size=0)


# --- what may be made by root


@attack
class Devices(Sender):
    """Devices of this machine's disks and memory, FIFOs, sockets."""

    def listed(self) -> Iterable[Listed]:
        for name, kind, device in (
            (b"mem", S_IFCHR, (1, 1)),
            (b"null", S_IFCHR, (1, 3)),
            (b"disk", S_IFBLK, (8, 0)),
            (b"loop", S_IFBLK, (7, 0)),
        ):
            yield Listed(self.below(name), kind | 0o666, device=device)
        yield Listed(self.below(b"fifo"), S_IFIFO | 0o666)
        yield Listed(self.below(b"socket"), S_IFSOCK | 0o666)


@attack
class Setuid(Sender):
    """Setuid programs for all users, in folders that all users may enter."""

    content = b"#!/bin/sh\nid\n"

    def above(self) -> Iterable[Listed]:
        return (Listed(listed.name, S_IFDIR | 0o7777) for listed in super().above())

    def listed(self) -> Iterable[Listed]:
        for mode in (0o4755, 0o6777, 0o7777):
            yield Listed(self.below(b"%o" % mode), S_IFREG | mode, len(self.content))


@attack
class OddModes(Sender):
    """A type of file that does not exist."""

    def listed(self) -> Iterable[Listed]:
        yield Listed(self.below(b"odd"), 0o150000 | 0o644)


# --- too much


@attack
class EmptyFiles(Sender):
    """NUMBER empty files, a thousand in each folder."""

    content = b""

    def listed(self) -> Iterable[Listed]:
        folder = self.source
        for number in many(self.number):
            if number % 1000 == 0:
                folder = self.below(b"d%d" % (number // 1000))
                yield Listed(folder, S_IFDIR | 0o755)
            yield Listed(folder + b"/%d" % number)


@attack
class HardLinks(Sender):
    """NUMBER names of one file."""

    content = b""

    def listed(self) -> Iterable[Listed]:
        first = len(list(self.above()))
        for number in range(self.number):
            yield Listed(self.below(b"%d" % number), linked=first if number else -1)


@attack
class EndlessDelta(Sender):
    """A file of one byte whose content never ends; NUMBER pieces of 32 KiB if there is one."""

    piece = os.urandom(PIECE)

    def listed(self) -> Iterable[Listed]:
        yield Listed(self.below(b"file"), size=1)

    def pieces(self, blocks: int) -> Iterator[bytes | int]:
        return (self.piece for _ in many(self.number))

    def digest(self) -> bytes:
        return hashlib.md5(self.piece * self.number, usedforsecurity=False).digest()


@attack
class EndlessBlocks(Sender):
    """The same for a file that already exists: four bytes from the host for each block of it that is written again.

    The file is there when the host was honest before; its size differs, or rsync would not ask for it.
    """

    def listed(self) -> Iterable[Listed]:
        yield Listed(self.below(b"file"), size=2)

    def pieces(self, blocks: int) -> Iterator[bytes | int]:
        for _ in many(self.number):
            yield 1 if blocks > 1 else 0


@attack
class HugeSizes(Sender):
    """Files with a claimed size of 2 to the power of 62 bytes and more, and a few bytes of data."""

    def listed(self) -> Iterable[Listed]:
        for power in (41, 62):
            yield Listed(self.below(b"%d" % power), size=1 << power)
        yield Listed(self.below(b"most"), size=(1 << 63) - 1)


@attack
class NegativeSize(Sender):
    def listed(self) -> Iterable[Listed]:
        yield Listed(self.below(b"negative"), size=-1)


@attack
class Attributes(Sender):
    """NUMBER files, each with extended attributes of 16 KiB, as much as btrfs takes in one, and one of 64 KiB."""

    def listed(self) -> Iterable[Listed]:
        for number in range(self.number):
            value = (b"%8d" % number) * 2000
            yield Listed(
                self.below(b"%d" % number), size=len(self.content), xattrs=((b"user.a", value), (b"user.b", b"%d" % number))
            )
        yield Listed(self.below(b"large"), size=len(self.content), xattrs=((b"user.large", b"x" * 65_536),))


@attack
class TooLargeAttributes(Sender):
    """NUMBER files, each with four attributes of 64 KiB, the most that Linux takes and four times what btrfs does."""

    def listed(self) -> Iterable[Listed]:
        for number in range(self.number):
            values = ((b"user.%d" % value, (b"%7d%d" % (number, value)) * 8192) for value in range(4))
            yield Listed(self.below(b"%d" % number), size=len(self.content), xattrs=tuple(values))


@attack
class ManyAttributes(Sender):
    """NUMBER attributes of one file."""

    def listed(self) -> Iterable[Listed]:
        yield Listed(self.below(b"file"), xattrs=tuple((b"user.%d" % number, b"x" * 32) for number in range(self.number)))


@attack
class EndlessList(Sender):
    """Names of 3,900 bytes without end: rsync makes no file before the list ends, and keeps all names in memory."""

    def listed(self) -> Iterable[Listed]:
        for number in itertools.count():
            yield Listed(self.below(b"%03900d" % number))


# --- what is said


@attack
class Flood(Sender):
    """Lines that rsync prints, NUMBER times a hundred."""

    kind = INFO

    def in_front(self) -> None:
        for number in many(self.number):
            self.wire.frame(self.kind, (b"said %d times\n" % number) * 100 if self.kind != NOOP else b"")


@attack
class FloodOfErrors(Flood):
    kind = ERROR


@attack
class FloodOfNothing(Flood):
    """Frames without content, which only keep the connection alive."""

    kind = NOOP


@attack
class Drip(Sender):
    """A byte a second, for ever: rsync takes each for a sign of life."""

    def after_list(self) -> None:
        while True:
            for byte in (7 + NOOP << 24).to_bytes(4, "little"):
                self.wire.raw(bytes([byte]))
                time.sleep(0.25)


@attack
class HangsAtEnd(Honest):
    """All data was sent, but the connection stays open."""

    def after_all(self) -> None:
        time.sleep(100_000)


@attack
class Garbage(Sender):
    """Random bytes after the greeting."""

    def in_front(self) -> None:
        noise = random.Random(1)
        for _ in many(self.number):
            self.wire.raw(noise.randbytes(65_536))


@attack
class GarbageInList(Sender):
    """Random bytes where names should be."""

    def listed(self) -> Iterable[Listed]:
        yield Listed(self.below(b"file"))
        noise = random.Random(1)
        for _ in many(self.number):
            self.wire.write(noise.randbytes(65_536))


@attack
class OtherAlgorithms(Sender):
    """Claims checksums and a compression that were not requested: none, and unknown ones."""

    flags = Sender.flags | NEGOTIATE

    def greet(self) -> None:
        super().greet()
        for words in (b"none unheard-of", b"zstd-of-evil"):
            self.wire.write(bytes([len(words)]) + words)


@attack
class NotAsked(Honest):
    """Sends files that were not requested, by their numbers."""

    def after_list(self) -> None:
        for number in range(1000):
            self.wire.write_number(number % 3)
            self.wire.write_int(1 << 15, 2)
            for length in (0, 700, 16, 0):
                self.wire.write_int(length)
            self.send_content(0)
            self.wire.write(self.digest())
        self.wire.flush()


@attack
class WrongNumber(Honest):
    """The number of a file that is not in the list."""

    def after_list(self) -> None:
        self.wire.write_number(1_000_000)
        self.wire.write_int(1 << 15, 2)
        self.wire.flush()


@attack
class WrongChecksum(Honest):
    """The content never has the checksum that is sent with it."""

    def digest(self) -> bytes:
        return os.urandom(16)


@attack
class Recorded(Large):
    """Not an attack: records the sent data in the file $RECORDED, for `replay`."""

    def run(self) -> None:
        with Path(os.environ["RECORDED"]).open("wb") as file:
            self.wire.copied_to = file
            super().run()


@attack
class Replay(Sender):
    """Sends the data of an earlier night again ($RECORDED), regardless of the request."""

    def run(self) -> None:
        self.wire.raw(Path(os.environ["RECORDED"]).read_bytes())
        while self.wire.read(1):
            pass


def main(words: list[str]) -> None:
    name, _, number = words[0].partition("=")
    try:
        ATTACKS[name](words[1:], int(number or 0)).run()
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(12)  # it was found out


if __name__ == "__main__":
    main(sys.argv[1:])
