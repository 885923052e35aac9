"""lightconv serve: models behind a page and an API."""

from collections.abc import Sequence
from pathlib import Path

from lightconv.commands.parser import Parser
from lightconv.console import tell
from lightconv.device import count_cores

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


def main(argv: Sequence[str]) -> None:
    parser = Parser(
        "serve",
        "Serves models on a page, through LibreTranslate's API, and through OpenAI's completions.",
        "lightconv serve my-model",
        "lightconv serve de-en en-de my-lm --port 5000",
        "lightconv serve my-model --host 0.0.0.0 --api-key-file key.txt",
    )
    parser.add("MODEL ...", "model folders, or runs")
    parser.add("--host ADDRESS", "listen there", default="127.0.0.1")
    parser.add("--port N", "port", type=int, default=8000)
    parser.add("--workers N", "processes that decode (default: one per core)", type=int)
    parser.add("--api-key-file FILE", "its first line is the key that clients must send")
    parser.add("--quantize none|int8|bf16", "linear layers in 8 or 16 bits", default="none")
    parser.add("--queue N", "texts that may wait; more are refused", type=int, default=2048)
    parser.add("--allow-origin URL ...", "other pages that may use the API")
    parser.add("--quiet", "no line for each request")
    arguments = parser.parse(argv)
    local = arguments.host in LOOPBACK
    key = ""
    if arguments.api_key_file is not None:
        key = Path(arguments.api_key_file).read_text().partition("\n")[0].strip()
        if len(key) < 8:
            raise ValueError(
                f"{arguments.api_key_file}: a key of {len(key)} characters, expected 8"
            )
    elif not local:
        raise ValueError(
            f"--host {arguments.host} is open to others, expected --api-key-file FILE with it. "
            "127.0.0.1 needs none"
        )
    workers = arguments.workers if arguments.workers is not None else count_cores()
    if not 1 <= workers <= 1024:
        raise ValueError(f"--workers {workers}, expected 1 to 1024")
    try:
        from lightconv.serve.app import App, describe_model
        from lightconv.serve.front import Server, listen
        from lightconv.serve.pool import Team, run
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: pip install 'lightconv[serve]'") from None
    models = [describe_model(path) for path in arguments.model]
    pairs = [f"{m.source} to {m.target}" for m in models if m.kind == "translation"]
    for what in ([each.name for each in models], pairs):
        if twice := [each for each in what if what.count(each) > 1]:
            raise ValueError(
                f"two models for {twice[0]}, expected one. Rename a folder, or omit it"
            )
    sock = listen(arguments.host, arguments.port)
    options = {"quantize": arguments.quantize}
    folders = {each.name: str(Path(each.folder).resolve()) for each in models}

    async def serve() -> None:
        team = Team(folders, workers, most=arguments.queue, options=options)
        app = App(
            models,
            team,
            key=key,
            hosts=LOOPBACK if local else None,
            origins=arguments.allow_origin,
            log=not arguments.quiet,
        )
        try:
            await team.start()
            host, port = sock.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            for each in models:
                languages = (
                    f", {each.source} to {each.target}" if each.kind == "translation" else ""
                )
                tell(f"{each.name}: {each.kind}{languages}")
            tell(f"serving on http://{host}:{port} with {workers} workers; Ctrl-C ends")
            await Server(app).serve(sock)
        finally:
            team.close()

    run(serve())
