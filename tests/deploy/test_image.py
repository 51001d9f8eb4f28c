"""`deploy/Dockerfile`: built with buildah on Debian's Python 3.11, and its command run as the image's user."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.object_store import object_store

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
BASE = "localhost/python:3.11-slim"
# Without pip, debootstrap leaves python3.11-venv unconfigured.
_PACKAGES = "ca-certificates,python3-pip,python3.11,python3.11-venv"


@dataclass(frozen=True)
class Image:
    """The image in its own storage, and one container of it."""

    folder: Path

    def buildah(self, *arguments: str, timeout_s: int = 300) -> str:
        """What a command of buildah prints."""
        places = [f"--root={self.folder}/root", f"--runroot={self.folder}/run"]
        command = ["buildah", *places, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout_s)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout

    def run(self, *command: str, options: tuple[str, ...] = ()) -> str:
        """Runs a command in the container, in the environment, the folder and as the user of the image."""
        return self.buildah("run", "--isolation=chroot", *options, "made", "--", *command)

    def build(self) -> None:
        """Imports Debian's Python as the base, builds the Dockerfile on it, and makes the container."""
        base = self.folder / "base"
        debootstrap = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(base)]
        done = subprocess.run(debootstrap, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout[-2000:]
        (base / "usr/bin/python").symlink_to("python3.11")
        self.buildah("from", "--name=base", "scratch")
        self.buildah("add", "base", str(base), "/")
        self.buildah("commit", "base", BASE)
        shutil.rmtree(base)
        build = ["build", "--isolation=chroot", "--file=deploy/Dockerfile", "--tag=datapipe", f"--build-arg=BASE={BASE}"]
        self.buildah(*build, *_index(), ".", timeout_s=1500)
        self.buildah("from", "--name=made", "localhost/datapipe")

    @property
    def command(self) -> list[str]:
        """Entry point and arguments."""
        config = json.loads(self.buildah("inspect", "--type=image", "localhost/datapipe"))["OCIv1"]["config"]
        return [*config["Entrypoint"], *config["Cmd"]]


def _index() -> list[str]:
    """Arguments of a build that make its pip reach the index that this machine's pip reaches."""
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT")
    given = [f"--build-arg={name}={value}" for name in names if (value := os.environ.get(name))]
    certificates = os.environ.get("PIP_CERT")
    return [*given, f"--volume={Path(certificates).parent}:{Path(certificates).parent}:ro"] if certificates else given


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if missing := [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("debootstrap runs as root")
    made = Image(tmp_path_factory.mktemp("image"))
    made.build()
    yield made
    made.buildah("rm", "--all")
    made.buildah("rmi", "--all", "--force")


def _kernels(image: Image) -> set[str]:
    """Compiled kernels in the container."""
    return set(image.run("find", "/var/cache/datapipe/kernels", "-type", "f", "-size", "+0").split())


def test_image_runs_its_command_as_a_user_without_rights_and_compiles_nothing(image: Image) -> None:
    before = _kernels(image)
    assert len(before) > 100
    assert image.run("id", "-u").strip() == "10001"
    printed = image.run(*image.command)
    assert "documents kept" in printed
    image.run("datapipe", "verify", "/runs/quickstart")
    assert _kernels(image) == before


def test_image_runs_as_any_user_into_a_folder_of_theirs(image: Image, tmp_path: Path) -> None:
    """As `docker run --user`, with which a mounted folder is that of the user who started it."""
    tmp_path.chmod(0o755)
    output = tmp_path / "runs"
    output.mkdir()
    os.chown(output, 12345, 12345)
    options = ("--user=12345:12345", f"--volume={output}:/runs")
    image.run(*image.command, "--limit", "20", options=options)
    assert json.loads((output / "quickstart" / "snapshot.json").read_text())
    assert (output / "quickstart" / "snapshot.json").stat().st_uid == 12345


def test_command_of_compose_builds_the_snapshot_on_a_store(image: Image) -> None:
    run = YAML(typ="safe", pure=True).load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["run"]
    with object_store("other") as query:
        url = query.partition("endpoint_override=")[2].partition("&")[0]
        command = shlex.split(run["command"].replace("http://store:9000", url))
        assert url in command[-1]
        credentials = [f"--env={name}=test" for name in run["environment"]]
        printed = image.run("datapipe", *command, options=tuple(credentials))
        assert "documents kept" in printed
        image.run("datapipe", "verify", command[-1], options=tuple(credentials))


def test_image_has_what_kuberay_and_the_launcher_of_ray_ask_for(image: Image) -> None:
    """Shells that may be login shells, which set PATH again; wget, by which KubeRay asks for health; job server and boto3."""
    for shell in (["bash", "-c"], ["bash", "-lc"]):
        assert "datapipe" in image.run(*shell, "ray --version && datapipe --version")
    image.run("wget", "--version")
    image.run("rsync", "--version")
    image.run("python", "-c", "import aiohttp_cors, opencensus, boto3")


def test_image_holds_no_source_of_the_checkout_but_mixtures(image: Image) -> None:
    listed = image.run("sh", "-c", "ls -A /home/datapipe; ls -A /src 2>/dev/null || true").split()
    assert set(listed) - {".bash_logout", ".bashrc", ".profile"} == {"mixtures"}
