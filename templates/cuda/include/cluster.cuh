// Cluster barrier and stores into another block's shared memory (sm_90).
#pragma once

__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Stores `v` where block `rank` of the cluster has the variable that is `local` here.
__device__ __forceinline__ void store_in_block(float* local, int rank, float v) {
    const unsigned here = static_cast<unsigned>(__cvta_generic_to_shared(local));
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(v) : "memory");
}
