"""A process and its descendants: their commands, and where they listen; Linux only."""

import contextlib
import os
import pathlib

# This machine only, as `listening` gives it: IPv4, and IPv4 within IPv6.
LOCAL = {"0100007F", "0000000000000000FFFF00000100007F"}


def family(pid):
    """Returns the commands of a process and its descendants, by process id."""
    parents, commands = {}, {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            commands[int(folder.name)] = (folder / "cmdline").read_text()
            parents[int(folder.name)] = int(status[1])
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return {one: commands.get(one, "") for one in found}


def named(pid, name):
    """Returns the ids of those whose commands begin with a name."""
    return [one for one, command in family(pid).items() if command.startswith(name)]


def listening(pid):
    """Returns the addresses, in hexadecimal, at which they listen."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        rows = map(str.split, pathlib.Path(f"/proc/net/{table}").read_text().splitlines())
        sockets |= {
            f"socket:[{row[9]}]": row[1].partition(":")[0] for row in rows if row[3] == "0A"
        }
    links = set()
    for file in (file for one in family(pid) for file in pathlib.Path(f"/proc/{one}/fd").glob("*")):
        with contextlib.suppress(OSError):  # it has been closed
            links.add(os.readlink(file))
    return {sockets[link] for link in links & sockets.keys()}
