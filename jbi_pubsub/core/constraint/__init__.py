"""Constraints in the language of the OMG trader: over the properties of offers, and over structured events."""

from .evaluation import Constraint as Constraint
from .evaluation import Preference as Preference
from .to_xpath import as_xpath as as_xpath
