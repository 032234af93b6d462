#include <stdio.h>
#include <stdlib.h>
#define BLOCK_SIZE 16
#define EXPAND_RATE 2
#define IN_RANGE(x, min, max)   ((x)>=(min) && (x)<=(max))
#define MIN(a, b) ((a)<=(b) ? (a) : (b))
__global__ void calculate_temp(float *power, float *temp_src, float *temp_dst, int cols, int rows,
                               float Cap, float Rx, float Ry, float Rz, float step)
{
    int x = blockIdx.x*blockDim.x + threadIdx.x;
    int y = blockIdx.y*blockDim.y + threadIdx.y;
    if (x >= cols || y >= rows) return;
    int N = (y == 0) ? y : y-1;
    int S = (y == rows-1) ? y : y+1;
    int W = (x == 0) ? x : x-1;
    int E = (x == cols-1) ? x : x+1;
    float c = temp_src[y*cols+x];
    temp_dst[y*cols+x] = c + step/Cap*(power[y*cols+x] + (temp_src[S*cols+x]+temp_src[N*cols+x]-2.0f*c)/Ry
        + (temp_src[y*cols+E]+temp_src[y*cols+W]-2.0f*c)/Rx + (80.0f-c)/Rz);
}
int compute_tran_temp(float *MatrixPower, float *MatrixTemp[2], int col, int row, int total_iterations)
{
    dim3 dimBlock(BLOCK_SIZE, BLOCK_SIZE);
    dim3 dimGrid((col+BLOCK_SIZE-1)/BLOCK_SIZE, (row+BLOCK_SIZE-1)/BLOCK_SIZE);
    int src = 1, dst = 0;
    for (int t = 0; t < total_iterations; t++) {
        int temp = src; src = dst; dst = temp;
        calculate_temp<<<dimGrid, dimBlock>>>(MatrixPower, MatrixTemp[src], MatrixTemp[dst], col, row, 0.5f, 1.f, 1.f, 80.f, 0.01f);
    }
    return dst;
}
int main(int argc, char **argv) {
    int rows = 512, cols = 512, iters = 4;
    int size = rows*cols;
    float *power = (float*)malloc(size*sizeof(float)), *temp = (float*)malloc(size*sizeof(float)), *out = (float*)calloc(size, sizeof(float));
    float *MatrixTemp[2], *MatrixPower;
    cudaMalloc((void**)&MatrixTemp[0], sizeof(float)*size);
    cudaMalloc((void**)&MatrixTemp[1], sizeof(float)*size);
    cudaMemcpy(MatrixTemp[0], temp, sizeof(float)*size, cudaMemcpyHostToDevice);
    cudaMalloc((void**)&MatrixPower, sizeof(float)*size);
    cudaMemcpy(MatrixPower, power, sizeof(float)*size, cudaMemcpyHostToDevice);
    int ret = compute_tran_temp(MatrixPower, MatrixTemp, cols, rows, iters);
    cudaMemcpy(out, MatrixTemp[ret], sizeof(float)*size, cudaMemcpyDeviceToHost);
    free(power); return 0;
}
