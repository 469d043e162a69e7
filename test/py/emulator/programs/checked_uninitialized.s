; What is written before it matters, and what is undefined but does not: v20 to v24 are dropped; kernarg: out.
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v2, v20
  v_and_b32_e32 v21, 0, v20
  v_mov_b32_e32 v5, 7
  v_mov_b32_e32 v6, 0
  s_mov_b32 s6, 1
  v_mov_b32_e32 v7, 3
  ds_write_b32 v1, v0
  scratch_store_dword off, v0, off offset:4
  s_waitcnt vmcnt(0) lgkmcnt(0)
  ds_read_b32 v3, v1
  scratch_load_dword v4, off, off offset:4
  scratch_load_dword v22, off, off offset:8
  ds_read_b32 v23, v1 offset:256
  s_waitcnt vmcnt(0) lgkmcnt(0)
  v_add_f32_e32 v24, v22, v23
  s_mov_b64 vcc, 0
  v_cndmask_b32_e32 v24, v21, v24, vcc
  v_add_u32_e32 v1, v1, v6
  s_cmp_eq_u32 s6, 0
  s_cbranch_scc1 end
  v_cmp_gt_u32_e32 vcc, 64, v7
  s_and_saveexec_b64 s[8:9], vcc
  global_store_dword v1, v3, s[4:5]
  global_store_dword v1, v4, s[4:5] offset:256
  global_store_dword v1, v5, s[4:5] offset:512
  global_store_dword v1, v24, s[4:5] offset:768
end:
  s_endpgm
