; A loop that never ends.
again:
  s_branch again
