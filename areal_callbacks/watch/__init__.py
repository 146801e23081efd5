"""The report of runs that are still written, served to a browser on this machine."""

from areal_callbacks.watch.feed import Feed
from areal_callbacks.watch.followed_run import FollowedRun
from areal_callbacks.watch.server import make_app, serve

__all__ = ["Feed", "FollowedRun", "make_app", "serve"]
