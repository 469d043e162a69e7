"""Products of MX operands, and what makes MX operands: elements of 4 and 8 bits with a scale for each 32 of them."""
