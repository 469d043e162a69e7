; Wave 0 clears a flag in LDS and spins until wave 1 sets it, which waits at the second barrier first.
  v_readfirstlane_b32 s6, v0
  v_mov_b32_e32 v1, 0
  v_mov_b32_e32 v2, 1
  s_cmp_lg_u32 s6, 0
  s_cbranch_scc1 ready
  ds_write_b32 v1, v1
  s_waitcnt lgkmcnt(0)
ready:
  s_barrier
  s_cmp_eq_u32 s6, 0
  s_cbranch_scc1 spin
  s_barrier
  ds_add_u32 v1, v2
  s_waitcnt lgkmcnt(0)
  s_branch join
spin:
  ds_add_rtn_u32 v3, v1, v1
  s_waitcnt lgkmcnt(0)
  v_readfirstlane_b32 s7, v3
  s_cmp_eq_u32 s7, 0
  s_cbranch_scc1 spin
join:
  s_barrier
  s_endpgm
