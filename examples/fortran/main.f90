! Asks a bundle of rms_norm for its workspace and loads its kernels, as a Fortran code would.
program normalise
  use, intrinsic :: iso_c_binding
  use rms_norm_kernels
  implicit none
  integer(c_int) :: code

  code = rms_norm_float32_prepare()
  if (code == 0) then
    ! y, x, weight and bias are device addresses (c_devloc, or c_loc under host_data use_device).
    code = rms_norm_float32(c_null_ptr, c_null_ptr, c_null_ptr, c_null_ptr, 1.0e-5_c_float, &
                            0_c_int64_t, 4096_c_int64_t, c_null_ptr, c_null_ptr, 0_c_size_t)
  end if
  print '(a,i0)', 'rms_norm: code ', code
  if (code /= 0) stop 1
end program normalise
