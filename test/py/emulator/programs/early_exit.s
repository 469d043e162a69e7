; Wave 0 of two ends at once; wave 1 passes a barrier alone and stores 1; kernarg: out.
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_readfirstlane_b32 s6, v0
  s_cmp_eq_u32 s6, 0
  s_cbranch_scc1 end
  s_barrier
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v2, 1
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v2, s[4:5]
end:
  s_endpgm
