; One wave loads 64 dwords of `in` to LDS, reads LDS too early, and copies them to `out`; kernarg: in, out.
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  s_mov_b32 m0, 0
  s_waitcnt lgkmcnt(0)
  global_load_lds_dword v1, s[4:5]
  global_load_dword v3, v1, s[4:5]
  s_waitcnt vmcnt(2)
  ds_read_b32 v2, v1
  s_waitcnt vmcnt(0) lgkmcnt(0)
  global_store_dword v1, v2, s[6:7]
  s_endpgm
