"""Documents that are like known ones: told by their bytes, with the same answers as by parsing them."""

from .stencil import Stencil, Texts, Traced

__all__ = ["Stencil", "Texts", "Traced"]
