#define WIDTH 16
#define HEIGHT 16
#define ETA 0.3f
#define MOMENTUM 0.3f
__global__ void bpnn_adjust_weights(float* delta, int hid, float* ly, int in, float* w, float* oldw) {
  int by = blockIdx.y, tx = threadIdx.x, ty = threadIdx.y;
  int index = (hid + 1) * HEIGHT * by + (hid + 1) * ty + tx + 1 + (hid + 1);
  int index_y = HEIGHT * by + ty + 1, index_x = tx + 1;
  w[index] += ((ETA * delta[index_x] * ly[index_y]) + (MOMENTUM * oldw[index]));
  oldw[index] = ((ETA * delta[index_x] * ly[index_y]) + (MOMENTUM * oldw[index]));
}
void adjust(float* d_delta, float* d_ly, float* d_w, float* d_oldw, int in, int hid) {
  int num_blocks = in / 16;
  dim3 grid(1, num_blocks); dim3 threads(16, 16);
  bpnn_adjust_weights<<<grid, threads>>>(d_delta, hid, d_ly, in, d_w, d_oldw);
}
