"""kernelsearch
format = 1
operator = "spmv_csr"
doc = "one thread, one row after the other"
dtypes = ["float32", "float64"]
[[launch]]
kernel = "spmv_csr"
args = ["y", "row_ptr", "col_idx", "values", "x"]
"""


def spmv_csr(y, row_ptr, col_idx, values, x):
    for i in range(y.shape[0]):
        total = ELEM(0)
        for p in range(row_ptr[i], row_ptr[i + 1]):
            total += values[p] * x[col_idx[p]]
        y[i] = total
