"""What a release consists of: one version everywhere, a wheel that works where it is installed, an archive of the sources."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from datapipe.config.yaml import parse_yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_version_is_the_same_everywhere() -> None:
    citation = parse_yaml((ROOT / "CITATION.cff").read_text(encoding="utf-8"), "CITATION.cff").data
    releases = re.findall(r"^## (.+?),", (ROOT / ".github/CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert PROJECT["version"] == version("datapipe") == citation["version"] == releases[0]


def test_changelog_has_at_most_sixty_lines_for_a_release() -> None:
    releases = (ROOT / ".github/CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert max(release.count("\n") for release in releases) <= 60


def test_template_of_a_bug_asks_for_the_version_and_the_reason_of_a_failure() -> None:
    template = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    asked = [each["attributes"] for each in parse_yaml(template, "bug.yml").data["body"]]
    for words in ("datapipe --version", "work/failure.txt"):
        assert any(words in each.get("description", "") for each in asked)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the archive of the sources."""
    pytest.importorskip("hatchling", reason="no hatchling: pip install hatchling")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True)
    return folder


def _tracked(*folders: str) -> set[str]:
    done = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


@pytest.mark.slow
def test_wheel_has_the_packages_alone_and_the_requirements_of_the_project(built: Path) -> None:
    with zipfile.ZipFile(built / f"datapipe-{PROJECT['version']}-py3-none-any.whl") as wheel:
        about = f"datapipe-{PROJECT['version']}.dist-info/"
        names = {name for name in wheel.namelist() if not name.startswith(about)}
        metadata = Parser().parsestr(wheel.read(f"{about}METADATA").decode())
        assert wheel.read(f"{about}licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert names == _tracked("datapipe", "stages")
    assert (metadata["Version"], metadata["License-Expression"]) == (PROJECT["version"], "Apache-2.0")
    assert metadata.get_all("Provides-Extra") == sorted(PROJECT["optional-dependencies"])
    found = [Requirement(each) for each in metadata.get_all("Requires-Dist") or ()]
    for extra, wanted in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items():
        listed = {each.name: each.specifier for each in found if (f'extra == "{extra}"' in str(each.marker)) == bool(extra)}
        for each in map(Requirement, wanted):
            assert listed[re.sub(r"[-_.]+", "-", each.name).lower()] == each.specifier


@pytest.mark.slow
def test_archive_of_the_sources_has_the_files_of_the_repository_alone(built: Path) -> None:
    with tarfile.open(built / f"datapipe-{PROJECT['version']}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - {"PKG-INFO"} == _tracked() - {".dockerignore", ".pre-commit-config.yaml"}


@pytest.mark.slow
def test_installed_wheel_prints_its_version_and_plans_the_quickstart(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", "--without-pip", "venv")
    python = tmp_path / "venv/bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", "--no-compile", wheel)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")  # behind the installed wheel
    assert Path(run(python, "-c", "import stages; print(stages.__path__[0])").strip()) == packages / "stages"
    assert run("venv/bin/datapipe", "--version") == f"datapipe {PROJECT['version']}\n"
    options = ("--output", "out", "--set", f"sources.docs.path={ROOT}/README.md")  # this environment has no other documents
    assert "quickstart → out" in run("venv/bin/datapipe", "plan", ROOT / "mixtures/quickstart.yaml", *options)
