#include <cuda_runtime.h>
typedef struct { float *x, *y, *z; float *vx, *vy, *vz; int n; } ParticleSystem;
__global__ void advance(ParticleSystem ps, float dt) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= ps.n) return; ps.x[i] += dt * ps.vx[i]; ps.y[i] += dt * ps.vy[i]; ps.z[i] += dt * ps.vz[i]; }
void ps_step(ParticleSystem *ps, float dt) { int nb = (ps->n + 127) / 128; advance<<<nb, 128>>>(*ps, dt); }
