"""Exit codes of the commands: by who must act, in the numbers of sysexits.h."""

from __future__ import annotations

from luce.errors import LuceError

INTERRUPTED = 130
PIPE_CLOSED = 141

BY_ACTOR = {"caller": 65, "peer": 76, "operator": 78, "supervisor": 70}
BY_NAME = {
    "unknown_parameter": 2,
    "missing_parameter": 2,
    "bad_parameter": 2,
    "not_running": 69,
    "connection_lost": 69,
    "busy": 75,
    "deadline": 75,
    "cancelled": 75,
    "shutting_down": 75,
    "not_permitted": 77,
}
HELP = """\
Exit codes:
   0  answered
   2  wrong use of the command or of a parameter
  65  the question cannot be answered as it is (too long, unknown model, ...)
  69  no daemon, or it went away
  70  the engine failed: ask again
  75  try again later
  76  daemon and client do not understand each other
  77  not permitted
  78  the model or the machine must be put right by its operator
 130  interrupted (Ctrl-C)
 141  nobody reads the output"""


def exit_code(error: LuceError) -> int:
    return BY_NAME.get(error.name) or BY_ACTOR[error.code.actor]
