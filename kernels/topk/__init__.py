"""The k largest or smallest of every row, with their indices."""
