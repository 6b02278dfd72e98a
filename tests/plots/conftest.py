"""What the tests of pictures share."""

import warnings

import matplotlib
import matplotlib.pyplot as plt
import pytest

matplotlib.use("agg")


@pytest.fixture
def strict():
    """Warnings are errors while drawing, and every figure is closed afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    plt.close("all")
