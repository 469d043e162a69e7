; out[i] = a[i] + b[i] for i < n; kernarg: a, b, out, n; s2 = workgroup; workgroups of 128.
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  s_load_dword s10, s[0:1], 0x18
  s_lshl_b32 s3, s2, 7
  v_add_u32_e32 v0, s3, v0
  s_waitcnt lgkmcnt(0)
  v_cmp_gt_u32_e32 vcc, s10, v0
  s_and_saveexec_b64 s[12:13], vcc
  s_cbranch_execz end
  v_lshlrev_b32_e32 v1, 2, v0
  global_load_dword v2, v1, s[4:5]
  global_load_dword v3, v1, s[6:7]
  s_waitcnt vmcnt(0)
  v_add_f32_e32 v2, v2, v3
  global_store_dword v1, v2, s[8:9]
end:
  s_endpgm
