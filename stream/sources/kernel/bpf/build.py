"""Build what the loader takes from stream.bpf.c: a light skeleton for each machine.

A light skeleton is a program for the kernel that makes the maps, fits the other programs to the
running kernel and loads them. The same tools give the same bytes, in whatever folder.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
SOURCE = HERE / "stream.bpf.c"
MACHINES = {"x86_64": "x86", "aarch64": "arm64"}
#: Newer kernels allow more: to see io_uring, and to read their memory without a call.
OBJECTS = {
    "stream": (),
    "stream-uring": ("-DWITH_URING",),
    "stream-direct": ("-DWITH_URING", "-DDIRECT"),
}
FLAGS = ("-g", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-sign-compare", "-Wno-unused-parameter")
_ESCAPES = {"n": 10, "t": 9, "r": 13, "a": 7, "b": 8, "f": 12, "v": 11}
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{1,3})|(.))", re.DOTALL)


def blob_name(machine: str, name: str) -> str:
    """Return the file name of an object that is built for a machine."""
    return f"{name}.{MACHINES[machine]}.lskel"


def build_tool_versions() -> str:
    """The versions that the bytes depend on."""
    return "; ".join(
        _run_build_tool([tool, "--version"]).decode().splitlines()[0]
        for tool in ("clang", "bpftool")
    )


def build_bpf_objects(folder: Path) -> list[Path]:
    """Build every object for every machine, and return the files."""
    made = []
    for machine, (name, options) in product(MACHINES, OBJECTS.items()):
        blob = folder / blob_name(machine, name)
        blob.write_bytes(_build_skeleton(machine, options))
        made.append(blob)
    return made


def _build_skeleton(machine: str, options: tuple[str, ...]) -> bytes:
    """Compile the feed's BPF program for one machine into a light skeleton, packed."""
    with TemporaryDirectory() as scratch:
        compiled = Path(scratch, "stream.bpf.o")  # its name goes into the result
        _run_build_tool(
            [
                *("clang", *FLAGS, "-target", "bpf", f"-D__TARGET_ARCH_{MACHINES[machine]}"),
                *options,
                *(f"-I{folder}" for folder in sorted(Path("/usr/include").glob("*-linux-gnu"))),
                *("-fdebug-compilation-dir=.", "-c", SOURCE.name, "-o", str(compiled)),
            ]
        )
        _run_build_tool(["llvm-strip", "-g", str(compiled)])
        return _pack_skeleton(
            _run_build_tool(["bpftool", "gen", "skeleton", "-L", str(compiled)]).decode()
        )


def _pack_skeleton(header: str) -> bytes:
    """What bpftool wrote as a C header, without the C."""
    image = _bytes_of_literal(
        header, "skel_prep_map_data((void *)", _header_number(header, r", 4096, (\d+)\)")
    )
    data = _bytes_of_literal(
        header, "opts.data = (void *)", _header_number(header, r"opts\.data_sz = (\d+)")
    )
    code = _bytes_of_literal(
        header, "opts.insns = (void *)", _header_number(header, r"opts\.insns_sz = (\d+)")
    )
    head = json.dumps(
        {
            "built_with": build_tool_versions(),
            "maps": re.findall(r"struct bpf_map_desc (\w+);", header),
            "programs": re.findall(r"struct bpf_prog_desc (\w+);", header),
            "image": len(image),
            "data": len(data),
            "code": len(code),
        }
    ).encode()
    return len(head).to_bytes(4, "little") + head + image + data + code


def _header_number(header: str, pattern: str) -> int:
    found = re.findall(pattern, header)
    assert len(found) == 1, pattern
    return int(found[0])


def _bytes_of_literal(header: str, before: str, length: int) -> bytes:
    """Return the bytes of a C string literal in the header that bpftool writes."""
    literal = _LITERAL.match(header, header.index(before) + len(before))
    assert literal
    body = _ESCAPE.sub(_unescaped_character, literal[1].replace("\\\n", ""))
    return body.encode("latin-1")[:length].ljust(length, b"\0")


def _unescaped_character(found: re.Match[str]) -> str:
    """Return the character that an escape in a C string literal stands for."""
    hexadecimal, octal, letter = found.groups()
    if letter is not None:
        return chr(_ESCAPES.get(letter, ord(letter)))
    return chr(int(hexadecimal, 16) if hexadecimal else int(octal, 8))


def _run_build_tool(command: list[str]) -> bytes:
    """Run a tool that builds the BPF program, and return its output; leave if it fails."""
    try:
        return subprocess.run(command, cwd=HERE, check=True, capture_output=True).stdout
    except subprocess.CalledProcessError as error:
        sys.exit(f"{command[0]}: {error.stderr.decode()}")


if __name__ == "__main__":
    for made in build_bpf_objects(HERE):
        print(made.name, made.stat().st_size, "bytes")  # noqa: T201
