struct Particle { float x, y, z, m; };
__global__ void drift(Particle* p, float dt, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) { p[i].x += dt; } }
void step(Particle* p, float dt, int n) { drift<<<(n + 255) / 256, 256>>>(p, dt, n); }
