"""Texts through the machine's own package client: its mirror, its signature checks, no root.

Lists, cache and state of apt live in a folder of ours, so that nothing of the system's changes.
What was fetched once is read from there, without apt and without a network.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lightconv.corpora import Progress
from lightconv.files import new_folder, sync

_NO_APT = (
    "`lightconv prepare synthetic-translation` and the other synthetic corpora need no package "
    "mirror"
)
# What hooks would do to the system; then, where everything goes. Sources and keys stay as they are.
_CONFIG = """\
#clear APT::Update;
#clear AptCli::Hooks;
#clear Acquire::Languages;
Acquire::Languages {{ {languages} }};
Acquire::IndexTargets::deb::Packages::DefaultEnabled "{packages}";
Acquire::IndexTargets::deb-src::Sources::DefaultEnabled "false";
Dir::State "{folder}/state/";
Dir::State::lists "{folder}/lists/";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache/";
Dir::Cache::archives "{folder}/cache/archives/";
Dir::Log "{folder}/log/";
"""


def fetch_indices(
    cache: Path, languages: Sequence[str], progress: Progress
) -> dict[str, list[Path]]:
    """The files of apt's `Translation-xx` indices for each language: plain text."""
    folder = _folder(cache)
    homes = {language: folder / "indices" / language for language in languages}
    with _lock(folder, progress):
        missing = [language for language, home in homes.items() if not home.is_dir()]
        if missing:
            apt = _Apt(folder, progress)
            apt.update(missing, packages=False)
            apt.save_indices({language: homes[language] for language in missing})
        for home in homes.values():
            if home.name not in missing:
                progress(f"using {home}, fetched before; remove it to fetch it anew")
    return {language: sorted(home.iterdir()) for language, home in homes.items()}


def fetch_packages(cache: Path, names: Sequence[str], progress: Progress) -> dict[str, Path]:
    """The .deb files of packages, of the version that apt would install."""
    folder = _folder(cache)
    homes = {name: folder / "packages" / name for name in names}
    with _lock(folder, progress):
        missing = [name for name, home in homes.items() if not home.is_dir()]
        if missing:
            apt = _Apt(folder, progress)
            apt.update([], packages=True)
            for name in missing:
                apt.download(name, homes[name])
        for home in homes.values():
            if home.name not in missing:
                progress(f"using {home}, fetched before; remove it to fetch it anew")
    return {name: _only_file(home) for name, home in homes.items()}


class _Apt:
    """apt-get and its relatives with a private state in `folder`."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        if shutil.which("apt-get") is None or shutil.which("apt-config") is None:
            raise ValueError(
                "no apt-get on this machine, expected a Debian or Ubuntu system. " + _NO_APT
            )
        self.folder = folder
        self.progress = progress
        self.config = folder / "apt.conf"
        # What apt complained about without giving up: the reason, if something is missing later.
        self.complaints: list[str] = []
        for name in ("state", "lists/partial", "cache/archives/partial", "log"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()

    def update(self, languages: Sequence[str], *, packages: bool) -> None:
        """Fetches the lists: translations for `languages`, and packages if they are wanted."""
        what = [f"Translation-{language}" for language in languages]
        self.progress(f"apt-get update: {', '.join(what) or 'list of packages'}")
        text = _CONFIG.format(
            languages=" ".join(f'"{language}";' for language in languages) or '"none";',
            packages="true" if packages else "false",
            folder=self.folder,
        )
        self.config.write_text(text, encoding="utf-8")
        # One broken source of several is no reason to stop: what is missing is noticed later.
        self._run(["apt-get", "-c", str(self.config), "-q", "update"], check=False)

    def save_indices(self, homes: dict[str, Path]) -> None:
        """Writes what was fetched for each language into a folder of its own, as plain text."""
        form = "$(LANGUAGE)|$(RELEASE)|$(METAKEY)|$(FILENAME)"
        targets = ["--format", form, "Created-By: Translations"]
        lines = self._run(["apt-get", "-c", str(self.config), "indextargets", *targets])
        found: dict[str, list[tuple[str, str]]] = {language: [] for language in homes}
        for line in lines.splitlines():
            language, release, key, file = line.split("|", 3)
            if language in found:
                found[language].append((f"{release}_{key}".replace("/", "_"), file))
        for language, files in found.items():
            if not files:
                raise ValueError(
                    f"apt-get update brought no Translation-{language}{self._reason()}. Check the "
                    "network and the sources of apt; a mirror may lack a language. " + _NO_APT
                )
        for language, files in found.items():
            with new_folder(homes[language]) as home:
                for number, (name, file) in enumerate(sorted(files)):
                    self._cat(file, home / f"{number}_{name}")

    def download(self, name: str, home: Path) -> None:
        """Fetches a package into a folder of its own."""
        self.progress(f"apt-get download {name}")
        with new_folder(home) as fresh:
            self._run(["apt-get", "-c", str(self.config), "-q", "download", name], folder=fresh)
            _only_file(fresh)

    def _cat(self, file: str, target: Path) -> None:
        """Writes an index, however apt has compressed it, as plain text."""
        methods = self._run(["apt-config", "shell", "found", "Dir::Bin::methods/f"])
        # found='/usr/lib/apt/methods': apt-helper lives beside that folder.
        path = Path(methods.strip().partition("=")[2].strip("'\""))
        helper = path.parent / "apt-helper"
        if not helper.is_file():
            raise ValueError(f"apt has no {helper}, expected apt 1.1 or newer. {_NO_APT}")
        with target.open("xb") as output:
            self._run([str(helper), "-c", str(self.config), "cat-file", file], output=output)
        sync(target)

    def _run(
        self,
        command: list[str],
        *,
        folder: Path | None = None,
        output: IO[bytes] | None = None,
        check: bool = True,
    ) -> str:
        """What a command prints, if it is not written to `output`; ValueError when it fails."""
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
            check=False,
        )
        complaints = [
            line
            for line in done.stderr.decode("utf-8", "replace").splitlines()
            # Root's downloads into a folder that only root can enter: true, and no matter.
            if line.startswith(("E:", "W:")) and "unsandboxed as root" not in line
        ]
        self.complaints += complaints
        for line in complaints:
            self.progress(line)
        if check and done.returncode != 0:
            words = " ".join([Path(command[0]).name, *command[3:]])
            raise ValueError(
                f"`{words[:100]}` failed with code {done.returncode}{self._reason()}. Check the "
                f"network and the sources of apt. {_NO_APT}"
            )
        return (done.stdout or b"").decode("utf-8", "replace")

    def _reason(self) -> str:
        """What apt complained about, the likeliest cause, as the end of a sentence."""
        if not self.complaints:
            return ""
        causes = [line for line in self.complaints if "Failed to fetch" in line]
        errors = [line for line in self.complaints if line.startswith("E:")]
        return f" ({(causes + errors + self.complaints)[0][2:].strip().rstrip('.')})"


def _folder(cache: Path) -> Path:
    """The folder of apt's private state below the cache."""
    folder = cache.absolute() / "apt"
    if set('"\n\\') & set(str(folder)):
        raise ValueError(f"apt cannot work in {str(folder)!r}: give a cache without quotes in it")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _lock(folder: Path, progress: Progress) -> Iterator[None]:
    """One at a time: another process that fetches into this folder is waited for."""
    try:
        import fcntl
    except ImportError:  # not on Windows, where there is no apt either
        yield
        return
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that fetches into {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _only_file(folder: Path) -> Path:
    files = sorted(folder.glob("*.deb"))
    if len(files) != 1:
        raise ValueError(f"{folder} has {len(files)} packages, expected one. Remove the folder")
    return files[0]
