/* kernelsearch
format = 1
operator = "matrix_mul"
doc = "one thread an element of c, operands straight from global memory"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_80"}
[tunables]
SIDE = [16]
[domain]
sizes = "m <= 2147483647 and n <= 65535 * SIDE and k <= 2147483647"
[[launch]]
kernel = "matrix_mul"
grid = ["ceildiv(m, SIDE)", "ceildiv(n, SIDE)"]
block = ["SIDE", "SIDE"]
args = ["c", "a", "b", "m:i32", "n:i32", "k:i32"]
*/
__global__ void matrix_mul(elem_t* c, const elem_t* a, const elem_t* b, int m, int n, int k) {
    // Rows go along the grid's x, the only axis with room for very many blocks.
    const long long row = static_cast<long long>(blockIdx.x) * SIDE + threadIdx.y;
    const long long col = static_cast<long long>(blockIdx.y) * SIDE + threadIdx.x;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (long long i = 0; i < k; ++i) {
        sum += static_cast<float>(a[row * k + i]) * static_cast<float>(b[i * n + col]);
    }
    c[row * n + col] = static_cast<elem_t>(sum);
}
