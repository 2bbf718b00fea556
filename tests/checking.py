"""The run-time type checker of the tests: beartype, with int accepted for float as Python does."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
