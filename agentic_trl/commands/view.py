"""``agentic_trl view``: one page of HTML that shows runs, their groups and their episodes; nothing is loaded by it."""

import argparse
import shutil
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agentic_trl.command_line import prepare_file
from agentic_trl.page.build import build_page, is_page
from agentic_trl.user_values import shown_text

MEGABYTE = 1_000_000


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    parser = argparse.ArgumentParser(prog="agentic_trl view", description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="output_dir of a trainer, or a file that `evaluate --output` wrote",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=None,
        help="the page; unset is RUN/view.html, of several ./view.html",
    )
    parser.add_argument(
        "--tokenizer", default=None, help="path or name; unset is that of the run's folder or model"
    )
    parser.add_argument("--serve", action="store_true", help="serve the page on this machine")
    parser.add_argument("--port", type=_port, default=0, help="port of --serve; 0 takes a free one")
    return parser


def run(words: Sequence[str]) -> int:
    """Write the page, and serve it if that was asked for.

    Args:
        words: The flags.

    Returns:
        Exit status 0.

    Raises:
        IsADirectoryError: If the page is a folder.
        FileExistsError: If it is a file that is no page of this command.
        OSError: If a run is not there or holds nothing, or the page cannot be written or served.
    """
    options = parser().parse_args(words)
    page = _page(options.runs) if options.output is None else options.output
    if page.is_dir():
        raise IsADirectoryError(
            f"--output {page} is a folder, expected a file. Give its name: {page / 'view.html'}"
        )
    if page.exists() and not is_page(page):
        raise FileExistsError(
            f"--output {page} is there and is no page of agentic_trl view, expected one, or a new name: it would be lost. "
            "Give another name, or remove it."
        )
    if all(path.exists() for path in options.runs):  # else the error of the run comes first
        prepare_file(page)
    built = build_page(options.runs, page, tokenizer=options.tokenizer)
    for note in built.notes:
        print(f"note: {shown_text(note)}")
    print(f"{page}: {built.episodes} episodes, {built.size / MEGABYTE:.1f} MB", flush=True)
    if options.serve:
        serve(page, options.port)
    return 0


def serve(page: Path, port: int) -> None:
    """Serve a page on 127.0.0.1, and nothing else, until Ctrl-C.

    Args:
        page: The file.
        port: The port; 0 for a free one.
    """
    with ThreadingHTTPServer(("127.0.0.1", port), _handler(page)) as server:
        print(f"http://127.0.0.1:{server.server_port}/\nCtrl-C ends it.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("Ended.", flush=True)


def _handler(page: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers with the page."""

        def do_GET(self) -> None:
            """Send the page; 404 for any other path, and for a name that another site gave this address."""
            host = self.headers.get("Host", "").partition(":")[0]  # no port where it is 80
            if self.path != "/" or host not in {"127.0.0.1", "localhost"}:
                self.send_error(404)
                return
            with page.open("rb") as file:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(page.stat().st_size))
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                shutil.copyfileobj(file, self.wfile)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler


def _page(runs: Sequence[Path]) -> Path:
    """Return where the page is written if nothing was said."""
    if len(runs) > 1:
        return Path("view.html")
    return runs[0].with_suffix(".html") if runs[0].is_file() else runs[0] / "view.html"


def _port(text: str) -> int:
    """Return a port.

    Raises:
        argparse.ArgumentTypeError: If it is none.
    """
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a port, 0 to 65535")
    return int(text)
