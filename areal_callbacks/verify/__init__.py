"""An independent recount of a training, and its comparison with what the metrics said.

Nothing here shares a rule with :mod:`areal_callbacks.monitors`: the recount looks at the operators that run.
"""

from areal_callbacks.verify.recount import Recount
from areal_callbacks.verify.totals import Totals

__all__ = ["Recount", "Totals"]
