"""The command line: help, completion, errors, names of pictures, and that a picture is either whole or absent."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

from btrkeep.choices import CURVES, PICTURE_FORMATS
from btrkeep.errors import OperatorError
from heatmap.cli import COMMANDS, PICTURE, group
from heatmap.picture import save
from tests.beds import TOP, btrfs, session, work
from tests.beds.completing import completing_bash
from tests.beds.leftout import needs_program
from tests.beds.work import error_and_hint
from tests.heatmap.program import PEER, heatmap, pixels


def fails(*words: str | Path, status: int = 1) -> tuple[str, str]:
    return error_and_hint(heatmap(*words, check=False), status)


def command_of(name: str) -> click.Command:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return command


@pytest.mark.slow
def test_help_fits_a_terminal_of_80_columns_and_names_every_option_and_command() -> None:
    text = heatmap("--help", COLUMNS="80").stdout
    assert heatmap("-h", COLUMNS="80").stdout == text
    assert text.startswith("Usage: btrfs-heatmap [OPTIONS] MOUNTPOINT\n")
    assert max(map(len, text.splitlines())) <= 80
    for param in command_of(PICTURE).get_params(click.Context(command_of(PICTURE))):
        if isinstance(param, click.Option):
            assert all(name in text for name in param.opts)
            assert param.help
    wide = heatmap("--help", COLUMNS="100").stdout
    for name, word in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(word)}$", wide, re.MULTILINE)
        assert heatmap(name, "--help").stdout.startswith(f"Usage: btrfs-heatmap {name} ")


def test_the_examples_of_the_help_can_be_given() -> None:
    lines = re.findall(r"^ +btrfs-heatmap (.*)$", heatmap("--help").stdout, re.MULTILINE)
    assert len(lines) == 3
    names = {name for param in command_of(PICTURE).params for name in param.opts}
    for line in lines:
        assert {word for word in line.partition(" |")[0].split() if word.startswith("-") and word != "-"} <= names


def test_help_imports_neither_numpy_nor_pillow_nor_python_btrfs() -> None:
    script = f"import sys, click; from heatmap.cli import group; picture = group.get_command(None, {PICTURE!r})"
    script += "; assert '--order' in picture.get_help(click.Context(picture)); print({'numpy', 'PIL', 'btrfs'} & {*sys.modules})"
    assert work(sys.executable, "-c", script, cwd=TOP).stdout == "set()\n"


def test_a_picture_imports_no_more_than_it_needs() -> None:
    """Forbidden are modules that are slow to import, and modules that a picture does not use."""
    script = "import sys, heatmap.cli.drawing; print({'asyncio', 'rich', 'subprocess', 'balancer'} & {*sys.modules})"
    assert work(sys.executable, "-c", script, cwd=TOP).stdout == "set()\n"


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ([], "missing argument 'MOUNTPOINT'", "usage: btrfs-heatmap [OPTIONS] MOUNTPOINT; --help explains it"),
        (["/", "--ordr", "3"], "btrfs-heatmap has no option --ordr", "did you mean --order?"),
        (["/", "--order", "-1"], "-1 is not in the range", "`btrfs-heatmap --help` explains it"),
        (["/", "--order", "15"], "15 is not in the range", "`btrfs-heatmap --help` explains it"),
        (["/", "--size", "16"], "16 is not in the range", "`btrfs-heatmap --help` explains it"),
        (["/", "--curve", "peano"], "'peano' is not one of", "`btrfs-heatmap --help` explains it"),
        (["/", "--blockgroup", "one"], "'one' is not a virtual address", "`btrfs-heatmap --help` explains it"),
        (["completion", "tcsh"], "'tcsh' is not one of", "`btrfs-heatmap completion --help` explains it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_word_that_is_not_understood_is_an_error_of_one_line_and_a_hint(words: list[str], error: str, hint: str) -> None:
    failure_text = fails(*words, status=2)
    assert error in failure_text[0]
    assert hint in failure_text[1]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--blockgroup", "1", "--extents"], "--blockgroup and --extents exclude each other"),
        (["--blockgroup", "1", "--device", "1"], "--device and --colour are for pictures of block groups"),
        (["--extents", "--colour", "score"], "--device and --colour are for pictures of block groups"),
    ],
    ids=str,
)
def test_options_that_exclude_each_other_are_an_error(words: list[str], error: str) -> None:
    assert fails(*words, "/")[0] == error


def test_what_is_no_mounted_btrfs_is_an_error_of_one_line_and_a_hint(tmp_path: Path) -> None:
    mounts = "name the mount point of a btrfs: `findmnt -t btrfs` lists them"
    assert fails(tmp_path / "none") == (f"{tmp_path}/none: No such file or directory", mounts)
    assert fails("/proc") == ("/proc is on proc, not on btrfs", "`findmnt -t btrfs` lists what is mounted")
    assert fails("/dev/null")[0].startswith("/dev/null is on ")
    assert r"\x1b[31m: No such file" in fails(tmp_path / "\x1b[31m")[0]


def test_a_folder_that_is_named_like_a_command_can_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "timelapse").mkdir()
    done = work(sys.executable, "-m", "heatmap", "./timelapse/none", cwd=tmp_path, check=False, env={"PYTHONPATH": str(TOP)})
    assert "timelapse/none: No such file" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_of_that_shell(shell: str) -> None:
    assert f"_BTRFS_HEATMAP_COMPLETE={shell}_complete" in heatmap("completion", shell).stdout


@pytest.mark.slow
def test_bash_completes_commands_options_and_choices_with_the_printed_script(tmp_path: Path) -> None:
    complete = completing_bash(tmp_path, "btrfs-heatmap", (sys.executable, "-m", "heatmap"), heatmap("completion", "bash").stdout)

    assert complete("btrfs-heatmap ti") >= {"timelapse"}
    assert complete("btrfs-heatmap --cur") == {"--curve"}
    assert complete("btrfs-heatmap --curve ") == {*CURVES}
    assert complete("btrfs-heatmap / --so") == {"--sort"}
    mounted = work("findmnt", "-t", "btrfs", "-rno", "TARGET", check=False).stdout.split()
    if mounted:
        assert mounted[0] in complete(f"btrfs-heatmap {mounted[0][:-1]}")
        assert mounted[0] in complete(f"btrfs-heatmap --order 5 {mounted[0][:-1]}")


def noise(edge: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (edge, edge, 3), np.uint8))


@pytest.mark.parametrize("form", PICTURE_FORMATS)
def test_a_picture_is_written_without_loss_and_replaces_the_one_before(tmp_path: Path, form: str) -> None:
    target, image = tmp_path / f"picture.{form}", noise(64)
    target.write_bytes(b"the one before")
    save(image, str(target), form)
    assert (pixels(target) == np.asarray(image)).all()
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_where_no_picture_can_be_written_it_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in (tmp_path / "none" / "x.png", tmp_path / "file" / "x.png", Path("/proc/x.png")):
        with pytest.raises(OperatorError, match=re.escape(str(name))) as caught:
            save(noise(8), str(name))
        assert caught.value.hint


@pytest.fixture(scope="module")
def point(no_leftovers: None) -> Iterator[Path]:
    """One small filesystem for the tests below, which only read it."""
    made = btrfs.make(size="300M")
    (made / "file").write_bytes(os.urandom(500_000))
    work("btrfs", "filesystem", "sync", made)
    time.sleep(0.2)
    yield made
    assert session.remove(made.parent) == []


SLOW = """
import sys, time
from PIL import Image
def save(image, file, *words, **named):
    file.write(b"half of it")
    file.flush()
    print("begun", flush=True)
    time.sleep(60)
Image.Image.save = save
from heatmap.cli import main
main()
"""


@pytest.mark.btrfs
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=str)
@pytest.mark.parametrize("before", [None, b"the one before"])
def test_a_picture_that_is_ended_in_the_middle_leaves_nothing(
    point: Path, tmp_path: Path, number: signal.Signals, status: int, before: bytes | None
) -> None:
    target = tmp_path / "picture.png"
    if before:
        target.write_bytes(before)
    argv = [sys.executable, "-c", SLOW, "-q", "-o", str(target), str(point)]
    with subprocess.Popen(argv, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        assert len(list(tmp_path.iterdir())) == (2 if before else 1)
        process.send_signal(number)
        assert process.wait(60) == status
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([before] if before else [])


def fsid_of(point: Path) -> str:
    return work("findmnt", "-no", "UUID", point).stdout.strip()


@pytest.mark.btrfs
def test_a_picture_without_a_given_name_is_named_as_by_the_peer(point: Path, tmp_path: Path) -> None:
    chunk = work("btrfs", "inspect-internal", "dump-tree", "-t", "chunk", btrfs.devices_of(point)[0]).stdout
    vaddr = re.search(r"FIRST_CHUNK_TREE CHUNK_ITEM (\d+)", chunk)
    assert vaddr
    for words in ([], ["--sort", "virtual"], ["--curve", "snake", "--sort", "virtual"], ["--blockgroup", vaddr[1]]):
        names, outputs = [], []
        for program in ([sys.executable, "-m", "heatmap"], [PEER]) if PEER.exists() else ([sys.executable, "-m", "heatmap"],):
            folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            begun = int(time.time())
            output = work(*program, "--order", "3", *words, point, cwd=folder, env={"PYTHONPATH": str(TOP)}).stdout
            [path] = folder.iterdir()
            match = re.fullmatch(r"(fsid_.*_at_)(\d+)(\.png)", path.name)
            assert match
            assert begun <= int(match[2]) <= time.time()
            names.append((match[1], match[3]))
            outputs.append(output.replace(match[2], ""))
            assert output.splitlines()[2] == f"pngfile {path.name}"
        assert names[0][0].startswith(f"fsid_{fsid_of(point)}_")
        assert len({*names}) == len({*outputs}) == 1


@pytest.mark.btrfs
def test_a_folder_gets_a_picture_with_a_name_of_its_own(point: Path, tmp_path: Path) -> None:
    lines = heatmap("-o", tmp_path, "--order", "2", point).stdout.splitlines()
    [path] = tmp_path.iterdir()
    assert lines[2] == f"pngfile {path}"
    assert pixels(path).shape == (1024, 1024, 3)


@pytest.mark.btrfs
def test_a_folder_that_ends_with_a_slash_is_made(point: Path, tmp_path: Path) -> None:
    """The README's command, in a folder that is still empty."""
    heatmap("-o", f"{tmp_path}/new/pictures/", "--order", "2", point)
    [path] = (tmp_path / "new/pictures").iterdir()
    assert pixels(path).shape == (1024, 1024, 3)
    (tmp_path / "file").write_text("")
    refused = heatmap("-o", f"{tmp_path}/file/", "--order", "2", point, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 2), refused.stderr


@pytest.mark.btrfs
def test_standard_output_gets_nothing_but_the_picture(point: Path, tmp_path: Path) -> None:
    argv = (sys.executable, "-m", "heatmap", "-v", "-o", "-", "--order", "4", "--size", "5", point)
    data = subprocess.run(argv, cwd=TOP, stdout=subprocess.PIPE, check=True).stdout
    heatmap("-o", tmp_path / "file.png", "--order", "4", "--size", "5", point)
    assert (np.asarray(Image.open(BytesIO(data))) == pixels(tmp_path / "file.png")).all()
    with subprocess.Popen(
        [*argv, "--order", "10", "--size", "11"], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.close()
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.btrfs
def test_verbosity_is_as_much_as_the_peers(point: Path, tmp_path: Path) -> None:
    """-q prints nothing, -v prints an additional line for each device extent."""
    by_name = {}
    for words in ([], ["-q"], ["-qq"], ["-v"], ["-v", "-q"]):
        by_name[" ".join(words)] = heatmap(*words, "-o", tmp_path / "x.png", point).stdout
        if PEER.exists():
            assert by_name[" ".join(words)] == work(PEER, *words, "-o", tmp_path / "x.png", point).stdout
    assert by_name["-q"] == by_name["-qq"] == ""
    assert by_name["-v -q"] == by_name[""]
    assert len(re.findall("^dev_extent devid 1 paddr", by_name["-v"], re.MULTILINE)) >= 5


@pytest.mark.btrfs
def test_a_block_group_that_is_not_there_is_an_error_that_names_the_nearest(point: Path) -> None:
    text = work("btrfs", "inspect-internal", "dump-tree", "-t", "chunk", btrfs.devices_of(point)[0]).stdout
    numbers = [int(vaddr) for vaddr in re.findall(r"FIRST_CHUNK_TREE CHUNK_ITEM (\d+)", text)]
    error, hint = fails("--blockgroup", str(numbers[1] + 4096), point)
    assert error == f"no block group begins at {numbers[1] + 4096}: it is inside the block group at {numbers[1]}"
    assert hint == f"the nearest begin at {numbers[0]}, {numbers[1]}, {', '.join(map(str, numbers[2:4]))}"
    assert fails("--blockgroup", "0x1", point)[0] == "no block group begins at 1"
    assert fails("--blockgroup", str(2**64 - 1), point)[0] == f"no block group begins at {2**64 - 1}"


@pytest.mark.btrfs
def test_other_mistakes_about_a_filesystem_are_errors_too(point: Path, tmp_path: Path) -> None:
    assert fails("--order", "5", "--size", "4", point)[0] == "size (4) cannot be smaller than order (5)"
    assert fails("--device", "7", point) == ("the filesystem has no device 7", "its devices: 1")
    device = btrfs.devices_of(point)[0]
    assert fails(device) == (f"{device} is a device", f"name its mount point: `findmnt {device}` shows it")
    done = heatmap("-o", tmp_path / "none" / "x.png", point, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith(f"error: {tmp_path}/none/x.png cannot be written")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.btrfs
def test_without_the_right_to_read_trees_it_says_so(point: Path) -> None:
    done = work(
        *("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-m", "heatmap", point),
        check=False,
        cwd=TOP,
    )
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = done.stderr.splitlines()
    assert error == f"error: no permission to read the trees of the btrfs at {point}"
    assert hint.startswith("hint: root has no CAP_SYS_ADMIN here")


@pytest.mark.btrfs
def test_a_file_within_a_filesystem_does_as_well_as_its_mount_point(point: Path, tmp_path: Path) -> None:
    for number, path in enumerate((point, point / "file")):
        heatmap("-o", tmp_path / f"{number}.png", path)
    assert (pixels(tmp_path / "0.png") == pixels(tmp_path / "1.png")).all()


@needs_program("groff")
def test_the_manual_names_every_option_and_command_of_a_picture() -> None:
    shown = work("groff", "-man", "-Tutf8", "-P-cbou", "-rLL=200n", TOP / "man" / "btrfs-heatmap.1").stdout.replace("\u2010", "-")
    options, commands = shown[shown.index("OPTIONS") : shown.index("COMMANDS")], shown[shown.index("COMMANDS") :]
    for param in command_of(PICTURE).get_params(click.Context(command_of(PICTURE))):
        for name in param.opts if isinstance(param, click.Option) else ():
            assert re.search(rf"(^|[ ,]){name}\b", options, re.MULTILINE), f"{name} is not in the manual"
    for name in COMMANDS:
        assert re.search(rf"^ +{name}\b", commands, re.MULTILINE), f"{name} is not in the manual"
    assert not work("groff", "-man", "-Tutf8", "-ww", TOP / "man" / "btrfs-heatmap.1").stderr
