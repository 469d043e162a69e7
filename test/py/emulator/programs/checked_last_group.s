; Every workgroup of 64 stores its ids to `work` and counts itself; the last of 4 adds them up; kernarg: work, count, out.
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  v_lshlrev_b32_e32 v1, 2, v0
  s_lshl_b32 s10, s2, 8
  v_add_u32_e32 v2, s10, v1
  v_add_u32_e32 v3, s2, v0
  v_mov_b32_e32 v4, 0
  v_mov_b32_e32 v5, 1
  s_waitcnt lgkmcnt(0)
  global_store_dword v2, v3, s[4:5]
  s_waitcnt vmcnt(0)
  s_mov_b64 s[12:13], exec
  s_mov_b64 exec, 1
  global_atomic_add v6, v4, v5, s[6:7] sc0
  s_waitcnt vmcnt(0)
  s_mov_b64 exec, s[12:13]
  v_readfirstlane_b32 s14, v6
  s_cmp_lg_u32 s14, 3
  s_cbranch_scc1 end
  global_load_dword v7, v1, s[4:5]
  global_load_dword v8, v1, s[4:5] offset:256
  global_load_dword v9, v1, s[4:5] offset:512
  global_load_dword v10, v1, s[4:5] offset:768
  s_waitcnt vmcnt(0)
  v_add3_u32 v7, v7, v8, v9
  v_add_u32_e32 v7, v7, v10
  global_store_dword v1, v7, s[8:9]
end:
  s_endpgm
