; Two waves meet at two barriers, the first time each at its own, which hardware allows; kernarg: out.
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_readfirstlane_b32 s6, v0
  s_cmp_lg_u32 s6, 0
  s_cbranch_scc1 other
  s_barrier
  s_branch join
other:
  s_barrier
  s_nop 1
join:
  s_barrier
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v0, s[4:5]
  s_endpgm
