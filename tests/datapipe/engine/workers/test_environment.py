"""What a run needs of its surroundings: closed streams, locales, limits, folders that cannot be written."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from tests.support import runs
from tests.support.cli_processes import COMMAND


def _in_process(script: str, shell: str = "exec {command}", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a script in a prepared process of its own, started by `shell`."""
    command = shell.format(command='"$0" -c "$1"')
    script = f"from datapipe.engine.workers.environment import prepare_process; prepare_process()\n{script}"
    arguments = ["sh", "-c", command, sys.executable, script]
    return subprocess.run(arguments, capture_output=True, check=False, env={**os.environ, **environment})


def test_closed_standard_streams_are_not_given_to_files(tmp_path):
    script = f"""
import os
with open({str(tmp_path / "file")!r}, "wb") as file:
    assert file.fileno() > 2, file.fileno()
    for descriptor in (1, 2):
        os.write(descriptor, b"what a library prints")
"""
    assert _in_process(script, "exec {command} <&- >&- 2>&-").returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_locale_without_unicode_does_not_stop_what_is_printed():
    locale = {"PYTHONIOENCODING": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    done = _in_process('print("read \\u2192 filter")', **locale)
    assert (done.returncode, done.stdout) == (0, b"read ? filter\n"), done.stderr


def test_limit_of_open_files_is_raised_as_far_as_it_may_be():
    hard = min(200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    script = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    done = _in_process(script, f"ulimit -Sn 50; ulimit -Hn {hard}; exec {{command}}")
    assert done.stdout.split() == [str(hard).encode()] * 2, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="folders are hidden by mounts")
def test_run_in_poor_surroundings_gives_the_bytes_of_any_run(tmp_path, corpus):
    """Another time zone, a locale of Turkish without its files, few open files, umask 077, a home that cannot be written, no
    /dev/shm, no temporary folder, stdin and stdout closed."""
    mixture, home = runs.write_mixture(tmp_path, corpus), tmp_path / "home"
    home.mkdir()
    folders = {"HOME": str(home), "TMPDIR": str(tmp_path / "absent")}
    locale = {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}
    # the kernels' cache stays where it is: compiling all of them anew takes minutes
    script = (
        f"mount -t tmpfs -o ro tmpfs {home} && mount -t tmpfs -o ro,size=4k tmpfs /dev/shm || exit 77; "
        f'umask 077; ulimit -n 64; exec "$0" "$@" <&- >&-'
    )
    arguments = ["run", str(mixture), "--workers", "2", "--output", str(tmp_path / "poor")]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, *COMMAND, *arguments],
        env={**os.environ, **folders, **locale},
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode == 77 or b"unshare" in done.stderr:
        pytest.skip("mounting is not permitted")
    assert done.returncode == 0, done.stderr.decode()
    rich = runs.run_mixture(mixture, make_engine=runs.InProcess)
    for path in (*rich.checksums, "snapshot.json"):
        assert (tmp_path / "poor" / path).read_bytes() == (tmp_path / "out" / path).read_bytes()
    assert (tmp_path / "poor/snapshot.json").stat().st_mode & 0o077 == 0
