// Packs: N neighbouring elements moved by one load or store, and their conversion to float.
#pragma once

template <int BYTES>
struct PackWord;
template <>
struct PackWord<2> {
    using type = unsigned short;
};
template <>
struct PackWord<4> {
    using type = unsigned int;
};
template <>
struct PackWord<8> {
    using type = uint2;
};
template <>
struct PackWord<16> {
    using type = uint4;
};

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ void from_float(float v, float& out) { out = v; }
#if ELEM_BFLOAT16
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ void from_float(float v, __nv_bfloat16& out) {
    out = __float2bfloat16_rn(v);
}
#endif

// N elements of elem_t as they lie in memory; N * ELEM_BYTES is 2, 4, 8 or 16.
template <int N>
struct Pack {
    using word_t = typename PackWord<N * ELEM_BYTES>::type;
    word_t word;

    __device__ __forceinline__ void clear() { word = word_t{}; }

    __device__ __forceinline__ void unpack(float (&v)[N]) const {
        elem_t e[N];
        memcpy(e, &word, sizeof(word_t));
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = to_float(e[i]);
    }

    __device__ __forceinline__ void pack(const float (&v)[N]) {
#if ELEM_BFLOAT16
        if constexpr (N % 2 == 0) {
            // The paired conversion packs both halves in one instruction.
            __nv_bfloat162 e[N / 2];
#pragma unroll
            for (int i = 0; i < N / 2; ++i) e[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
            memcpy(&word, e, sizeof(word_t));
        } else
#endif
        {
            elem_t e[N];
#pragma unroll
            for (int i = 0; i < N; ++i) from_float(v[i], e[i]);
            memcpy(&word, e, sizeof(word_t));
        }
    }
};

// Read-only data that other threads will want again.
template <int N>
__device__ __forceinline__ Pack<N> load_shared_use(const elem_t* p) {
    Pack<N> r;
    r.word = __ldg(reinterpret_cast<const typename Pack<N>::word_t*>(p));
    return r;
}

// Data read once: marked first to leave the caches, so that it does not push out what is reused.
template <int N>
__device__ __forceinline__ Pack<N> load_once(const elem_t* p) {
    Pack<N> r;
    r.word = __ldcs(reinterpret_cast<const typename Pack<N>::word_t*>(p));
    return r;
}

template <int N>
__device__ __forceinline__ void store_once(elem_t* p, const Pack<N>& v) {
    __stcs(reinterpret_cast<typename Pack<N>::word_t*>(p), v.word);
}

// True where every pointer in the list can be accessed N elements at a time.
template <int N>
__device__ __forceinline__ bool packs_aligned(const void* p) {
    return (reinterpret_cast<unsigned long long>(p) % (N * ELEM_BYTES)) == 0;
}
template <int N, typename... Rest>
__device__ __forceinline__ bool packs_aligned(const void* p, Rest... rest) {
    return packs_aligned<N>(p) && packs_aligned<N>(rest...);
}
