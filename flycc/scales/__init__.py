"""Where a block scale may stand in a product without changing a bit of the result: bounds and guards."""
