#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#define CUDA_CALL(x) {const cudaError_t a = (x); if(a != cudaSuccess) { printf("\nCUDA Error: %s (err_num=%d) \n", cudaGetErrorString(a), a); cudaDeviceReset(); exit(EXIT_FAILURE);} }
typedef struct latLong { float lat; float lng; } LatLong;
__global__ void euclid(LatLong *d_locations, float *d_distances, int numRecords, float lat, float lng)
{
	int globalId = blockDim.x * (gridDim.x * blockIdx.y + blockIdx.x) + threadIdx.x;
	LatLong *latLong = d_locations + globalId;
	if (globalId < numRecords) {
		float *dist = d_distances + globalId;
		*dist = (float)sqrt((lat - latLong->lat)*(lat - latLong->lat) + (lng - latLong->lng)*(lng - latLong->lng));
	}
}
int main(int argc, char *argv[]) {
	int numRecords = 10000; float lat = 30.f, lng = 90.f;
	LatLong *locations = (LatLong*)malloc(sizeof(LatLong)*numRecords);
	float *distances = (float*)malloc(sizeof(float)*numRecords);
	LatLong *d_locations; float *d_distances;
	CUDA_CALL(cudaMalloc((void**)&d_locations, sizeof(LatLong)*numRecords));
	CUDA_CALL(cudaMalloc((void**)&d_distances, sizeof(float)*numRecords));
	CUDA_CALL(cudaMemcpy(&d_locations[0], &locations[0], sizeof(LatLong)*numRecords, cudaMemcpyHostToDevice));
	euclid<<< (numRecords+255)/256, 256 >>>(d_locations, d_distances, numRecords, lat, lng);
	cudaThreadSynchronize();
	CUDA_CALL(cudaMemcpy(distances, d_distances, sizeof(float)*numRecords, cudaMemcpyDeviceToHost));
	return 0;
}
