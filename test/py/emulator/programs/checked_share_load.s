; Wave 0 of two loads 128 dwords of `in` to LDS, in two instructions; both waves store them; kernarg: in, out.
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_readfirstlane_b32 s8, v0
  s_mov_b32 m0, 0
  s_waitcnt lgkmcnt(0)
  s_cmp_lg_u32 s8, 0
  s_cbranch_scc1 share
  global_load_lds_dword v1, s[4:5]
  v_add_u32_e32 v2, 0x100, v1
  s_movk_i32 m0, 0x100
  s_nop 4
  global_load_lds_dword v2, s[4:5]
  s_waitcnt vmcnt(0)
share:
  s_barrier
  ds_read_b32 v3, v1
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v3, s[6:7]
  s_endpgm
