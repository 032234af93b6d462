/* kernelsearch
format = 1
operator = "spmv_csr"
doc = "one thread a row"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [256]
[domain]
rows = "rows <= 2147483647"
[[launch]]
kernel = "spmv_csr"
grid = ["ceildiv(rows, THREADS)"]
block = ["THREADS"]
args = ["y", "row_ptr", "col_idx", "values", "x", "rows:i32"]
*/
__global__ void spmv_csr(elem_t* y, const int* row_ptr, const int* col_idx, const elem_t* values,
                         const elem_t* x, int rows) {
    const long long row = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= rows) return;
    elem_t sum = 0;
    for (long long k = row_ptr[row]; k < row_ptr[row + 1]; ++k) sum += values[k] * x[col_idx[k]];
    y[row] = sum;
}
