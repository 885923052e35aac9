"""Clients that people have: libretranslatepy, openai, schemathesis, and Chromium with axe-core."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightconv
from tests.serve.test_server import LINES, MODELS, Running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("serve"), "--workers", "2")
    yield running
    running.end()


def test_libretranslatepy(server: Running) -> None:
    client = pytest.importorskip("libretranslatepy", reason="the extra `clients`")
    api = client.LibreTranslateAPI(f"http://127.0.0.1:{server.port}/")
    assert api.translate(LINES[0], "en", "eo") == lightconv.load(MODELS[0]).translate(LINES[:1])[0]
    assert api.detect(LINES[0])[0]["language"] == "en"
    assert {each["code"] for each in api.languages()} == {"en", "eo"}


def test_openai(server: Running) -> None:
    openai = pytest.importorskip("openai", reason="the extra `clients`")
    fields = {"model": "text", "prompt": LINES[0], "max_tokens": 20, "seed": 3}
    with openai.OpenAI(
        api_key="none", base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0
    ) as client:
        assert "text" in [each.id for each in client.models.list()]
        whole = client.completions.create(**fields)
        usage = {"include_usage": True}
        chunks = list(client.completions.create(stream=True, stream_options=usage, **fields))
        texts = [each.choices[0].text for each in chunks if each.choices]
        assert "".join(texts) == whole.choices[0].text != ""
        assert chunks[-1].usage == whole.usage and not chunks[-1].choices
        assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
        with pytest.raises(openai.BadRequestError, match="no such model"):
            client.completions.create(model="pairs", prompt="a")


def test_schemathesis(server: Running, tmp_path: Path) -> None:
    """Requests made from /openapi.json: no 5xx, answers as described, bad ones refused."""
    pytest.importorskip("schemathesis", reason="the extra `clients`")
    program = Path(sys.executable).parent / "schemathesis"
    address = f"http://127.0.0.1:{server.port}/openapi.json"
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    checks += ",response_schema_conformance,negative_data_rejection"
    command = [str(program), "run", address, "-n", "40", "--seed", "1", "-c", checks]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]


def test_the_page_in_chromium(server: Running, tmp_path: Path) -> None:
    """Typed, read, hovered and used by keyboard, at two widths, dark and light."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Chromium, node and npm")
    subprocess.run(
        ["npm", "install", "--silent", "--prefix", str(tmp_path), "playwright-core", "axe-core"],
        check=True,
    )
    script = Path(__file__).with_name("page.mjs")
    address = f"http://127.0.0.1:{server.port}/"
    done = subprocess.run(
        ["node", str(script), str(tmp_path / "node_modules"), address, str(tmp_path), LINES[0]],
        env={**os.environ, "CHROMIUM": chromium},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = lightconv.load(MODELS[0]).translate(LINES[:1])[0]
    for view in map(json.loads, done.stdout.splitlines()):
        assert not (view["foreign"] or view["errors"] or view["violations"] or view["wide"]), view
        assert view["answers"]["translation"] == expected
        assert view["hovered"].startswith(expected.split()[0])
        assert view["focused"].startswith(expected.split()[1])
    assert len(done.stdout.splitlines()) == 4
