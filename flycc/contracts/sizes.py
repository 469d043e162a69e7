"""Sizes in problems."""

#: A size is a number, or the name of a symbol that is known only at run time (for example "s0").
Size = int | str
