"""A small server for the page and its events, behind an address that cannot be guessed.

Starlette and uvicorn, an extra, and not the standard library's ``http.server``: by its own documentation that one is
not for production, it reads requests without time-outs, and it has a thread for every page that is open.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from areal_callbacks.watch.feed import Feed

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

LOOPBACK = "127.0.0.1"
_LOOK = 0.2
_HEARTBEAT = 15.0
_CONNECTIONS = 64
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def make_app(feed: Feed, token: str, hosts: list[str]) -> Starlette:
    """``/<token>/`` is the page, ``/<token>/events`` its server-sent events; anything else does not exist.

    Args:
        feed: the data.
        token: what the address must hold.
        hosts: names that a request may call this server by; others may come from pages that let a name of theirs point
            here.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, Response, StreamingResponse
    from starlette.routing import Route

    def show_page(request: Request) -> Response:
        _check_token(request, token)
        return HTMLResponse(feed.render_page(), headers=_HEADERS)

    async def send_events(request: Request) -> Response:
        _check_token(request, token)
        events = listen(feed, _read_version(request))
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    routes = [Route("/{token}/", show_page), Route("/{token}/events", send_events)]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)])


def _check_token(request: Request, token: str) -> None:
    from starlette.exceptions import HTTPException

    if not secrets.compare_digest(request.path_params["token"].encode(), token.encode()):
        raise HTTPException(404)


async def listen(feed: Feed, seen: int) -> AsyncIterator[str]:
    """Server-sent events: ``data`` for every version after ``seen``, ``problem``, and a comment now and then.

    The comment makes a connection fail that nobody reads any more.
    """
    told, quiet = "", 0.0
    feed.add_listener()
    try:
        yield ": welcome\n\n"
        while not feed.is_over:
            quiet += _LOOK
            if feed.version > seen:
                seen, quiet = feed.version, 0.0
                yield f"id: {seen}\nevent: data\ndata: {feed.data}\n\n"
            if feed.problem != told:
                told = feed.problem
                yield f"event: problem\ndata: {json.dumps(told or 'live')}\n\n"
            if quiet > _HEARTBEAT:
                quiet = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(_LOOK)
    finally:
        feed.remove_listener()


def _read_version(request: Request) -> int:
    """The version that the page holds: what it came with, or what it received before it lost the connection."""
    given = request.headers.get("last-event-id") or request.query_params.get("after", "0")
    return int(given) if given.isdecimal() and len(given) < 16 else 0


def serve(feed: Feed, *, host: str = LOOPBACK, port: int = 0, announce: Callable[[str], Any] = print) -> None:
    """Serve until the process is interrupted.

    Args:
        feed: the data.
        host: the address to listen on.
        port: 0: a free one.
        announce: is told the address of the page before the first request.

    Raises:
        OSError: the address cannot be listened on.
    """
    import uvicorn

    token = secrets.token_urlsafe(18)
    hosts = [LOOPBACK, "localhost"] if host in (LOOPBACK, "localhost") else ["*"]
    config = uvicorn.Config(
        make_app(feed, token, hosts),
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        announce(f"http://{shown}:{listener.getsockname()[1]}/{token}/")
        feed.start()
        try:
            _make_server(config, feed).run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            feed.end()


def _make_server(config: Any, feed: Feed) -> Any:
    """One that ends the events first: their connections would keep it from ending."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            feed.end()
            super().handle_exit(sig, frame)

    return Server(config)
