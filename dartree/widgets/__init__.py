"""Explorers for JupyterLab: ``from dartree import widgets; widgets.explore(stack)``.

What is shown is computed by pure functions and by a Session without any widget; the controls
are thin. Each factory builds its controls and its picture together and returns one box, so a
cell that runs again has one set of observers, not two.
"""

from dartree.widgets.explorer import Explorer, explore
from dartree.widgets.session import Calls, Choice, Session, View
from dartree.widgets.stepper import Stepper, step
from dartree.widgets.svg import tree_svg
from dartree.widgets.whatif import WhatIf, what_if

__all__ = [
    "Calls",
    "Choice",
    "Explorer",
    "Session",
    "Stepper",
    "View",
    "WhatIf",
    "explore",
    "step",
    "tree_svg",
    "what_if",
]
